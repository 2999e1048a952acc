package org.cassandracdc.source;

import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.functions.api.Record;
import org.apache.pulsar.io.core.Source;
import org.apache.pulsar.io.core.SourceContext;

/**
 * The Pulsar IO source: starts the Python application that lies unpacked beside this class, moves frames. No more.
 *
 * <p>It is declared for GenericRecord, though it returns KeyValue records: the sink then makes its producer at the first
 * record, by that record's own schema. Declared for KeyValue it would register a schema of its own first.
 */
public class CassandraSource implements Source<GenericRecord> {
    private static final List<String> SECRETS = List.of("auth.username", "auth.password", "ssl.keystore.password",
            "ssl.truststore.password", "ssl.openssl.privateKey", "pulsarAuthParams");
    private static final int ANSWER_SECONDS = 60;

    private ChildProcess child;

    @Override
    public void open(Map<String, Object> config, SourceContext context) throws Exception {
        File application = application();
        String python = String.valueOf(config.getOrDefault("python", "python3"));
        checkPython(python, application);
        child = new ChildProcess(List.of(python, "-I", "-S", application.getPath()), application,
                context.getLogger(), context::recordMetric,
                (schema, topic) -> register(schema, topic.isEmpty() ? context.getOutputTopic() : topic, context));
        try {
            child.start(Json.of(openDocument(config, context))).get(ANSWER_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            close();
            throw new IllegalArgumentException(e.getCause().getMessage());
        }
    }

    @Override
    @SuppressWarnings("unchecked")
    public Record<GenericRecord> read() throws Exception {
        return (Record<GenericRecord>) (Record<?>) child.next();
    }

    @Override
    public void close() throws Exception {
        if (child != null) {
            child.close();
        }
    }

    /** A producer that is made registers its schema, or tells why it cannot. */
    private static void register(Schema<?> schema, String topic, SourceContext context) throws PulsarClientException {
        context.getPulsarClient().newProducer(schema).topic(topic).create().close();
    }

    private static Map<String, Object> openDocument(Map<String, Object> config, SourceContext context) {
        Map<String, Object> options = new LinkedHashMap<>(config);
        for (String name : SECRETS) {
            String secret = context.getSecret(name);
            if (secret != null) {
                options.put(name, secret);
            }
        }
        Map<String, Object> instance = new LinkedHashMap<>();
        instance.put("name", context.getTenant() + "/" + context.getNamespace() + "/" + context.getSourceName());
        instance.put("id", context.getInstanceId());
        instance.put("instances", context.getNumInstances());
        instance.put("outputTopic", context.getOutputTopic());
        instance.put("guarantee", guarantee(context));
        return Map.of("config", options, "pulsar", PulsarConnection.of(context.getPulsarClient()),
                "instance", instance);
    }

    private static String guarantee(SourceContext context) {
        Object guarantee = context.getSourceConfig() == null ? null
                : context.getSourceConfig().getProcessingGuarantees();
        return guarantee == null ? "ATLEAST_ONCE" : guarantee.toString();
    }

    private static File application() throws IOException {
        URL mark = CassandraSource.class.getClassLoader().getResource("python/ABI");
        if (mark == null || !"file".equals(mark.getProtocol())) {
            throw new IOException("the archive was not unpacked as a NAR: the Python application is not beside it");
        }
        return new File(mark.getPath()).getParentFile();
    }

    /** The application holds compiled modules: another version or build of Python cannot load them. */
    private static void checkPython(String python, File application) throws IOException, InterruptedException {
        String wanted = Files.readString(Path.of(application.getPath(), "ABI")).trim();
        String hint = "set the option 'python' to an interpreter of that kind, or build the archive with this one";
        Process process;
        try {
            process = new ProcessBuilder(python, "-I", "-S", "-c",
                    "import sysconfig; print(sysconfig.get_config_var('SOABI'))").redirectErrorStream(true).start();
        } catch (IOException e) {
            throw new IOException("option python: cannot run '" + python + "' (" + e.getMessage()
                    + "); the archive was built for " + wanted + ": " + hint);
        }
        process.getOutputStream().close();
        String found = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8).trim();
        if (process.waitFor() != 0 || !found.equals(wanted)) {
            throw new IOException("option python: '" + python + "' is " + found + ", but the archive was built for "
                    + wanted + ": " + hint);
        }
    }
}
