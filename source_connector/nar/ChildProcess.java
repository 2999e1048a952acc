package org.cassandracdc.source;

import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.slf4j.Logger;

/**
 * The child and its pipes. Three threads: `pump` starts the child and reads its frames into a bounded queue (a read
 * from a pipe cannot be interrupted), `writer` writes what is sent to it, `stderr` logs its lines.
 */
final class ChildProcess {
    private static final int WAITING_RECORDS = 500;
    private static final int CLOSE_SECONDS = 10;

    private final List<String> command;
    private final File directory;
    private final Logger log;
    private final BiConsumer<String, Double> metrics;
    private final Registry registry;
    private final BlockingQueue<Object> records = new ArrayBlockingQueue<>(WAITING_RECORDS);
    private final BlockingQueue<byte[]> outgoing = new LinkedBlockingQueue<>();
    private final CompletableFuture<Void> opened = new CompletableFuture<>();
    private final Map<Integer, Destination> destinations = new HashMap<>();
    private volatile Process process;
    private volatile boolean closing;

    /** Makes sure that a data topic has a schema; no topic is the source's own one. */
    interface Registry {
        void register(Schema<?> schema, String topic) throws PulsarClientException;
    }

    private record Destination(Schema<?> schema, String topic) {
    }

    ChildProcess(List<String> command, File directory, Logger log, BiConsumer<String, Double> metrics,
            Registry registry) {
        this.command = command;
        this.directory = directory;
        this.log = log;
        this.metrics = metrics;
        this.registry = registry;
    }

    /** Starts the child; completes when it has taken its configuration, fails with its reason when it has not. */
    CompletableFuture<Void> start(String openDocument) {
        outgoing.add(Frames.open(openDocument));
        // The child asks to be killed when the thread that started it ends, so that thread is the pump itself.
        thread("pump", this::pump);
        return opened;
    }

    /** The next record; waits for it. Throws when the child has ended. */
    DataRecord next() throws Exception {
        Object next = records.take();
        if (next instanceof DataRecord record) {
            return record;
        }
        records.offer(next);
        throw (Exception) next;
    }

    void send(byte[] frame) {
        outgoing.add(frame);
    }

    /** Asks the child to end and waits for it; kills it when it does not. */
    void close() throws InterruptedException {
        closing = true;
        send(Frames.empty(Frames.CLOSE));
        Process child = process;
        if (child != null && !child.waitFor(CLOSE_SECONDS, TimeUnit.SECONDS)) {
            child.destroyForcibly().waitFor();
        }
        outgoing.add(new byte[0]);
    }

    private void pump() {
        Exception end;
        try {
            process = new ProcessBuilder(command).directory(directory).start();
            thread("stderr", this::logErrors);
            thread("writer", this::write);
            end = readFrames(new DataInputStream(new BufferedInputStream(process.getInputStream(), 1 << 16)));
        } catch (IOException | InterruptedException | RuntimeException e) {
            end = e;
        }
        if (process != null) {
            process.destroyForcibly();
        }
        outgoing.add(new byte[0]);
        opened.completeExceptionally(end);
        fail(end);
    }

    private Exception readFrames(DataInputStream in) throws IOException, InterruptedException {
        while (true) {
            Frames.Frame frame = Frames.read(in);
            if (frame == null) {
                return new IOException("the connector's Python process has ended with exit code " + process.waitFor());
            }
            switch (frame.type()) {
                case Frames.OPENED -> opened.complete(null);
                case Frames.SCHEMA -> register(Frames.SchemaFrame.of(frame.body()));
                case Frames.RECORD -> put(Frames.RecordFrame.of(frame.body()));
                case Frames.LOG -> log(frame.body().get() & 0xFF, Frames.text(frame.body()));
                case Frames.METRIC -> {
                    double value = frame.body().getDouble();
                    metrics.accept(Frames.text(frame.body()), value);
                }
                case Frames.ERROR -> {
                    return new IllegalStateException(Frames.text(frame.body()));
                }
                default -> throw new IOException("the child wrote a frame of unknown type " + frame.type());
            }
        }
    }

    private void register(Frames.SchemaFrame frame) {
        Schema<?> schema = DataSchema.of(frame);
        try {
            registry.register(schema, frame.topic());
            destinations.put(frame.id(), new Destination(schema, frame.topic()));
            send(Frames.taken(frame.id()));
        } catch (PulsarClientException e) {
            send(Frames.refused(frame.id(), String.valueOf(e.getMessage())));
        }
    }

    private void put(Frames.RecordFrame frame) throws IOException, InterruptedException {
        Destination to = destinations.get(frame.schemaId());
        if (to == null) {
            throw new IOException("the child wrote a record of unknown schema " + frame.schemaId());
        }
        DataRecord record = new DataRecord(frame, to.schema(), to.topic(), this);
        while (!closing && !records.offer(record, 1, TimeUnit.SECONDS)) {
            continue; // back-pressure: the pipe fills and the child waits
        }
    }

    private void fail(Exception end) {
        try {
            while (!closing && !records.offer(end, 1, TimeUnit.SECONDS)) {
                continue;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void write() {
        List<byte[]> batch = new ArrayList<>();
        try (OutputStream out = process.getOutputStream()) {
            while (true) {
                batch.clear();
                batch.add(outgoing.take());
                outgoing.drainTo(batch);
                for (byte[] frame : batch) {
                    if (frame.length == 0) {
                        return;
                    }
                    out.write(frame);
                }
                out.flush();
            }
        } catch (IOException | InterruptedException e) {
            log.debug("the connector's Python process takes no more frames", e); // its end is reported by the pump
        }
    }

    private void logErrors() {
        try (BufferedReader lines = new BufferedReader(
                new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                log.info(line);
            }
        } catch (IOException e) {
            log.debug("standard error of the connector's Python process", e);
        }
    }

    private void log(int level, String line) {
        if (level >= 40) {
            log.error(line);
        } else if (level >= 30) {
            log.warn(line);
        } else if (level >= 20) {
            log.info(line);
        } else {
            log.debug(line);
        }
    }

    private static void thread(String name, Runnable body) {
        Thread thread = new Thread(body, "cassandra-cdc-" + name);
        thread.setDaemon(true);
        thread.start();
    }
}
