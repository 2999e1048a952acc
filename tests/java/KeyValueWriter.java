import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Publishes KEY_VALUE records (SEPARATED, AVRO key and value) whose Avro bytes are given, for tests of readers.
 *
 * <p>One JSON request a line on stdin: {"topic", "batch": records per entry (1: no batching), "key_schema", "value_schema",
 * "records": [{"key": base64, "value": base64 or null, "properties": {}, "event_time": ms}]}. One JSON line answers on
 * stdout: {"ids": ["ledger:entry:partition:batch index", ...]} or {"error": "..."}. Started as: KeyValueWriter SERVICE_URL.
 */
public final class KeyValueWriter {
    private static final ObjectMapper JSON = new ObjectMapper();

    private KeyValueWriter() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        try (PulsarClient client = PulsarClient.builder()
                        .serviceUrl(args[0])
                        .operationTimeout(120, TimeUnit.SECONDS)
                        .build();
                BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            answers.println("{\"ready\":true}");
            answers.flush();
            for (String line = requests.readLine(); line != null; line = requests.readLine()) {
                answers.println(answer(client, JSON.readTree(line)));
                answers.flush();
            }
        }
    }

    private static ObjectNode answer(PulsarClient client, JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            ArrayNode ids = answer.putArray("ids");
            for (MessageId id : publish(client, request)) {
                MessageIdAdv at = (MessageIdAdv) id;
                ids.add(at.getLedgerId() + ":" + at.getEntryId() + ":" + at.getPartitionIndex() + ":" + at.getBatchIndex());
            }
        } catch (Exception error) {
            answer.removeAll();
            answer.put("error", String.valueOf(error));
        }
        return answer;
    }

    private static List<MessageId> publish(PulsarClient client, JsonNode request) throws Exception {
        Schema<KeyValue<byte[], byte[]>> schema = Schema.KeyValue(
                new AvroBytes(request.get("key_schema").asText()),
                new AvroBytes(request.get("value_schema").asText()),
                KeyValueEncodingType.SEPARATED);
        int batch = request.get("batch").asInt();
        try (Producer<KeyValue<byte[], byte[]>> producer = client.newProducer(schema)
                .topic(request.get("topic").asText())
                .enableBatching(batch > 1)
                .batchingMaxMessages(Math.max(batch, 2))
                .batchingMaxPublishDelay(10, TimeUnit.SECONDS)
                .blockIfQueueFull(true)
                .sendTimeout(120, TimeUnit.SECONDS)
                .create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (JsonNode record : request.get("records")) {
                sent.add(message(producer, record).sendAsync());
            }
            producer.flush();
            List<MessageId> ids = new ArrayList<>();
            for (CompletableFuture<MessageId> each : sent) {
                ids.add(each.get());
            }
            return ids;
        }
    }

    private static TypedMessageBuilder<KeyValue<byte[], byte[]>> message(
            Producer<KeyValue<byte[], byte[]>> producer, JsonNode record) {
        Base64.Decoder base64 = Base64.getDecoder();
        JsonNode value = record.get("value");
        TypedMessageBuilder<KeyValue<byte[], byte[]>> message = producer.newMessage().value(new KeyValue<>(
                base64.decode(record.get("key").asText()), value.isNull() ? null : base64.decode(value.asText())));
        record.get("properties").fields().forEachRemaining(each -> message.property(each.getKey(), each.getValue().asText()));
        if (record.hasNonNull("event_time")) {
            message.eventTime(record.get("event_time").asLong());
        }
        return message;
    }

    /** Bytes that are Avro already, under the Avro schema they were written with. */
    private static final class AvroBytes implements Schema<byte[]> {
        private final SchemaInfo info;

        AvroBytes(String avroSchema) {
            info = SchemaInfo.builder()
                    .name("")
                    .type(SchemaType.AVRO)
                    .schema(avroSchema.getBytes(StandardCharsets.UTF_8))
                    .build();
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
            return this;
        }
    }
}
