package org.cassandracdc.source;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.functions.api.Record;

/** One message for the data topic, as what Pulsar asks of it; what became of it is told to the child. */
record DataRecord(Optional<String> getKey, Object getValue, Schema<Object> getSchema, Map<String, String> getProperties,
        Optional<Long> getEventTime, Optional<String> getDestinationTopic, long seq, Consumer<byte[]> child)
        implements Record<Object> {
    /** Without a topic it goes to the source's own one. */
    static DataRecord of(Frames.RecordFrame frame, Schema<Object> schema, String topic, Consumer<byte[]> child) {
        boolean isOneValue = (Schema<?>) schema instanceof DataSchema;
        return new DataRecord(
                isOneValue ? Optional.of(new String(frame.key(), StandardCharsets.UTF_8)) : Optional.empty(),
                isOneValue ? frame.value() : new KeyValue<>(frame.key(), frame.value()), schema, frame.properties(),
                frame.eventTime() > 0 ? Optional.of(frame.eventTime()) : Optional.empty(),
                topic.isEmpty() ? Optional.empty() : Optional.of(topic), frame.seq(), child);
    }

    @Override
    public void ack() {
        child.accept(Frames.answer(Frames.Type.ACK, seq, ""));
    }

    @Override
    public void fail() {
        child.accept(Frames.answer(Frames.Type.FAIL, seq, ""));
    }
}
