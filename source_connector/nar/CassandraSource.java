package org.cassandracdc.source;

import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.io.SourceConfig;
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
    private static final int ANSWER_SECONDS = 60;

    private ChildProcess child;

    @Override
    public void open(Map<String, Object> config, SourceContext context) throws Exception {
        URL abi = CassandraSource.class.getClassLoader().getResource("python/ABI");
        if (abi == null || !"file".equals(abi.getProtocol())) {
            throw new IOException("the archive was not unpacked as a NAR: the Python application is not beside it");
        }
        File application = new File(abi.toURI()).getParentFile();
        String python = String.valueOf(config.getOrDefault("python", "python3"));
        child = new ChildProcess(List.of(python, "-I", "-S", application.getPath()), application, context);
        try {
            child.start(Json.of(openDocument(config, context))).get(ANSWER_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException | TimeoutException e) {
            close();
            if (e.getCause() instanceof IllegalStateException said) {
                throw new IllegalArgumentException(said.getMessage());
            }
            throw new IllegalArgumentException("option python: cannot run '" + python + "' ("
                    + (e.getCause() == null ? "no answer in " + ANSWER_SECONDS + " s" : e.getCause().getMessage())
                    + "), but the archive was built for " + Files.readString(new File(application, "ABI").toPath()).trim()
                    + ": set the option 'python' to an interpreter of that kind");
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

    /** What the child cannot find out by itself. The values of `--secrets` stand among the options. */
    private static Map<String, Object> openDocument(Map<String, Object> config, SourceContext context) {
        Map<String, Object> options = new HashMap<>(config);
        Map<String, Object> instance = new HashMap<>();
        instance.put("instances", context.getNumInstances());
        instance.put("outputTopic", context.getOutputTopic());
        SourceConfig deployed = context.getSourceConfig();
        if (deployed != null) {
            instance.put("guarantee", deployed.getProcessingGuarantees());
            Map<String, Object> secrets = deployed.getSecrets();
            (secrets == null ? Map.<String, Object>of() : secrets)
                    .forEach((name, place) -> options.put(name, context.getSecret(name)));
        }
        return Map.of("config", options, "instance", instance, "pulsar", broker(context));
    }

    /**
     * How this instance reaches its broker, for the child to reach it too. The client's interface does not tell; its
     * implementation does, and lives in another class loader, hence the reflection. What is not there is left out.
     */
    private static Map<String, Object> broker(SourceContext context) {
        Map<String, Object> found = new HashMap<>();
        try {
            Object client = context.getPulsarClient();
            Object settings = client.getClass().getMethod("getConfiguration").invoke(client);
            for (String getter : List.of("getServiceUrl", "getAuthPluginClassName", "getAuthParams",
                    "getTlsTrustCertsFilePath", "isTlsAllowInsecureConnection", "isTlsHostnameVerificationEnable")) {
                found.put(getter, settings.getClass().getMethod(getter).invoke(settings));
            }
        } catch (ReflectiveOperationException | RuntimeException e) {
            context.getLogger().debug("the client does not tell how it reaches the broker", e);
        }
        return found;
    }
}
