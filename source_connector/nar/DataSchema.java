package org.cassandracdc.source;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** A schema whose values are Avro or JSON already: what it registers is the schema, what it writes are the bytes. */
record DataSchema(SchemaInfo getSchemaInfo) implements Schema<byte[]> {
    @SuppressWarnings("unchecked")
    static Schema<Object> of(Frames.SchemaFrame frame) {
        DataSchema value = of(frame, frame.valueSchema());
        return (Schema<Object>) (frame.format() == 2 ? value
                : Schema.KeyValue(of(frame, frame.keySchema()), value, KeyValueEncodingType.SEPARATED));
    }

    private static DataSchema of(Frames.SchemaFrame frame, String json) {
        return new DataSchema(SchemaInfo.builder().name(frame.name()).properties(Map.of())
                .type(frame.format() == 0 ? SchemaType.AVRO : SchemaType.JSON)
                .schema(json.getBytes(StandardCharsets.UTF_8)).build());
    }

    @Override
    public byte[] encode(byte[] message) {
        return message;
    }

    @Override
    public Schema<byte[]> clone() {
        return this;
    }
}
