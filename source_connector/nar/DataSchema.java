package org.cassandracdc.source;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** An Avro schema whose values are Avro already: what it registers is the schema, what it writes are the bytes. */
final class DataSchema implements Schema<byte[]> {
    private final SchemaInfo info;

    private DataSchema(SchemaInfo info) {
        this.info = info;
    }

    static Schema<KeyValue<byte[], byte[]>> keyValue(Frames.SchemaFrame frame) {
        return Schema.KeyValue(avro(frame.name(), frame.keySchema()), avro(frame.name(), frame.valueSchema()),
                KeyValueEncodingType.SEPARATED);
    }

    private static DataSchema avro(String name, String json) {
        return new DataSchema(SchemaInfo.builder().name(name).type(SchemaType.AVRO).properties(Map.of())
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
