package org.cassandracdc.source;

import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.io.core.SourceContext;
import org.slf4j.Logger;
import org.slf4j.MDC;

/**
 * The child and its pipes. Three threads: `pump` starts the child and reads its frames into a bounded queue (a read
 * from a pipe cannot be interrupted), `writer` writes what is sent to it, `stderr` logs its lines.
 */
final class ChildProcess {
    private static final int WAITING_BATCHES = 5;
    private static final int BATCH = 100;
    private static final int CLOSE_SECONDS = 10;
    private static final byte[] END = {};

    private final ProcessBuilder builder;
    private final SourceContext context;
    /** Pulsar's marks of the instance's thread: with its thread runtime, they lead log lines to the instance's log. */
    private final Map<String, String> instanceMarks = MDC.getCopyOfContextMap();
    private final BlockingQueue<Object> records = new ArrayBlockingQueue<>(WAITING_BATCHES);
    private final BlockingQueue<byte[]> outgoing = new LinkedBlockingQueue<>();
    private final CompletableFuture<Void> opened = new CompletableFuture<>();
    private final Map<Integer, Destination> destinations = new ConcurrentHashMap<>();
    private ArrayDeque<?> taken = new ArrayDeque<>();
    private volatile Process process;
    private volatile boolean closing;

    private record Destination(Schema<Object> schema, String topic) {
    }

    ChildProcess(List<String> command, File directory, SourceContext context) {
        this.builder = new ProcessBuilder(command).directory(directory);
        this.context = context;
    }

    /** Starts the child; completes when it has taken its configuration, fails with its reason when it has not. */
    CompletableFuture<Void> start(String openDocument) {
        outgoing.add(Frames.frame(Frames.Type.OPEN, openDocument.getBytes(StandardCharsets.UTF_8)));
        // The child asks to be killed when the thread that started it ends, so that thread is the pump itself.
        thread("pump", this::pump);
        return opened;
    }

    /** The next record; waits for it. Throws when the child has ended. */
    DataRecord next() throws Exception {
        while (taken.isEmpty()) {
            Object next = records.take();
            if (next instanceof Exception end) {
                records.offer(end);
                throw end;
            }
            taken = (ArrayDeque<?>) next;
        }
        return (DataRecord) taken.remove();
    }

    /** Asks the child to end and waits for it; kills it when it does not. */
    void close() throws InterruptedException {
        closing = true;
        outgoing.add(Frames.frame(Frames.Type.CLOSE, END));
        Process child = process;
        if (child != null && !child.waitFor(CLOSE_SECONDS, TimeUnit.SECONDS)) {
            child.destroyForcibly().waitFor();
        }
        outgoing.add(END);
    }

    private void pump() {
        Exception end;
        try {
            process = builder.start();
            thread("stderr", this::logLines);
            thread("writer", this::write);
            end = readFrames(new DataInputStream(new BufferedInputStream(process.getInputStream(), 1 << 16)));
        } catch (IOException | InterruptedException | RuntimeException e) {
            end = e;
        }
        if (process != null) {
            process.destroyForcibly();
        }
        outgoing.add(END);
        opened.completeExceptionally(end);
        try {
            put(end);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private Exception readFrames(DataInputStream in) throws IOException, InterruptedException {
        // What came together goes on together: to hand records over one by one costs a wake-up for each.
        ArrayDeque<DataRecord> batch = new ArrayDeque<>();
        for (Frames.Frame frame = Frames.read(in); frame != null; frame = Frames.read(in)) {
            if (frame.type() != Frames.Type.RECORD) {
                batch = handOver(batch);
            }
            switch (frame.type()) {
                case OPENED -> opened.complete(null);
                case SCHEMA -> register(Frames.SchemaFrame.of(frame.body()));
                case RECORD -> {
                    Frames.RecordFrame record = Frames.RecordFrame.of(frame.body());
                    Destination to = destinations.get(record.schemaId());
                    batch.add(DataRecord.of(record, to.schema(), to.topic(), outgoing::add));
                    if (batch.size() == BATCH || in.available() == 0) {
                        batch = handOver(batch);
                    }
                }
                case METRIC -> context.recordMetric(Frames.text(frame.body()), frame.body().getDouble());
                case ERROR -> {
                    return new IllegalStateException(Frames.text(frame.body()));
                }
                default -> throw new IOException("the child wrote a frame of unknown type " + frame.type());
            }
        }
        return new IOException("the connector's Python process has ended with exit code " + process.waitFor());
    }

    private ArrayDeque<DataRecord> handOver(ArrayDeque<DataRecord> batch) throws InterruptedException {
        put(batch);
        return new ArrayDeque<>();
    }

    /** A producer that is made registers its schema, or tells why it cannot, with the class; a topic that is slow holds up no other. */
    private void register(Frames.SchemaFrame frame) {
        Schema<Object> schema = DataSchema.of(frame);
        String topic = frame.topic().isEmpty() ? context.getOutputTopic() : frame.topic();
        context.getPulsarClient().newProducer(schema).topic(topic).createAsync().thenCompose(Producer::closeAsync)
                .thenRun(() -> destinations.put(frame.id(), new Destination(schema, frame.topic())))
                .handle((done, e) -> outgoing.add(e == null ? Frames.answer(Frames.Type.TAKEN, frame.id(), "")
                        : Frames.answer(Frames.Type.REFUSED, frame.id(), "" + e.getCause())));
    }

    private void put(Object next) throws InterruptedException {
        while (!closing && !records.offer(next, 1, TimeUnit.SECONDS)) {
            continue; // back-pressure: the pipe fills and the child waits
        }
    }

    private void write() {
        try (OutputStream out = process.getOutputStream()) {
            for (byte[] frame = outgoing.take(); frame != END; frame = outgoing.take()) {
                out.write(frame);
                if (outgoing.isEmpty()) {
                    out.flush();
                    Thread.sleep(1); // answers come by thousands a second, and each wake-up costs: some may gather
                }
            }
        } catch (IOException | InterruptedException e) {
            // The child takes no more frames; its end is reported by the pump.
            context.getLogger().debug("the connector's Python process", e);
        }
    }

    /** A line of the child's log begins with its level, 3 to 6 in angle brackets; any other comes from below it. */
    private void logLines() {
        Logger log = context.getLogger();
        MDC.setContextMap(instanceMarks == null ? Map.of() : instanceMarks);
        try (BufferedReader lines = process.errorReader(StandardCharsets.UTF_8)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String text = line.replaceFirst("^<[3-6]>", "");
                switch (line.length() == text.length() ? '6' : line.charAt(1)) {
                    case '3' -> log.error(text);
                    case '4' -> log.warn(text);
                    default -> log.info(text);
                }
            }
        } catch (IOException e) {
            log.debug("standard error of the connector's Python process", e);
        }
    }

    private static void thread(String name, Runnable body) {
        Thread thread = new Thread(body, "cassandra-cdc-" + name);
        thread.setDaemon(true);
        thread.start();
    }
}
