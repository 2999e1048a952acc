package org.cassandracdc.source;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Optional;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.functions.api.Record;

/** One message for the data topic; what became of it is told to the child. */
final class DataRecord implements Record<Object> {
    private final Frames.RecordFrame frame;
    private final Schema<?> schema;
    private final String topic;
    private final ChildProcess child;

    DataRecord(Frames.RecordFrame frame, Schema<?> schema, String topic, ChildProcess child) {
        this.frame = frame;
        this.schema = schema;
        this.topic = topic;
        this.child = child;
    }

    @Override
    public Optional<String> getKey() {
        return isOneValue() ? Optional.of(new String(frame.key(), StandardCharsets.UTF_8)) : Optional.empty();
    }

    @Override
    public Object getValue() {
        return isOneValue() ? frame.value() : new KeyValue<>(frame.key(), frame.value());
    }

    @Override
    @SuppressWarnings("unchecked")
    public Schema<Object> getSchema() {
        return (Schema<Object>) schema;
    }

    @Override
    public Optional<String> getDestinationTopic() {
        return topic.isEmpty() ? Optional.empty() : Optional.of(topic);
    }

    private boolean isOneValue() {
        return schema instanceof DataSchema;
    }

    @Override
    public Map<String, String> getProperties() {
        return frame.properties();
    }

    @Override
    public Optional<Long> getEventTime() {
        return frame.eventTime() > 0 ? Optional.of(frame.eventTime()) : Optional.empty();
    }

    @Override
    public void ack() {
        child.send(Frames.seq(Frames.ACK, frame.seq()));
    }

    @Override
    public void fail() {
        child.send(Frames.seq(Frames.FAIL, frame.seq()));
    }
}
