package org.cassandracdc.source;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** A schema whose values are Avro or JSON already: what it registers is the schema, what it writes are the bytes. */
final class DataSchema implements Schema<byte[]> {
    private final SchemaInfo info;

    private DataSchema(SchemaInfo info) {
        this.info = info;
    }

    static Schema<?> of(Frames.SchemaFrame frame) {
        SchemaType type = frame.format() == 0 ? SchemaType.AVRO : SchemaType.JSON;
        DataSchema value = new DataSchema(frame.name(), type, frame.valueSchema());
        if (frame.format() == 2) {
            return value;
        }
        DataSchema key = new DataSchema(frame.name(), type, frame.keySchema());
        return Schema.KeyValue(key, value, KeyValueEncodingType.SEPARATED);
    }

    private DataSchema(String name, SchemaType type, String json) {
        this(SchemaInfo.builder().name(name).type(type).properties(Map.of())
                .schema(json.getBytes(StandardCharsets.UTF_8)).build());
    }

    @Override
    public byte[] encode(byte[] message) {
        return message;
    }

    @Override
    public byte[] decode(byte[] bytes) {
        return bytes;
    }

    @Override
    public SchemaInfo getSchemaInfo() {
        return info;
    }

    @Override
    public Schema<byte[]> clone() {
        return new DataSchema(info);
    }
}
