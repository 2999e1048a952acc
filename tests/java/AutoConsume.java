import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;

/**
 * Consumes a data topic as a Java user would, with AUTO_CONSUME, and prints a line for each record:
 * `key {a=1} value {b=2}`, `value null` for a tombstone; of the format json the key is the message's text key.
 * Started as: AutoConsume SERVICE_URL (TOPIC COUNT)...
 */
public final class AutoConsume {
    private AutoConsume() {}

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (int at = 1; at < args.length; at += 2) {
                print(client, args[at], Integer.parseInt(args[at + 1]));
            }
        }
    }

    private static void print(PulsarClient client, String topic, int count) throws Exception {
        try (Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                .subscriptionName("java").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            for (int i = 0; i < count; i++) {
                Message<GenericRecord> message = consumer.receive(30, TimeUnit.SECONDS);
                Object value = message.getValue().getNativeObject();
                if (value instanceof KeyValue<?, ?> pair) {
                    System.out.println("key " + text(pair.getKey()) + " value " + text(pair.getValue()));
                } else {
                    System.out.println("key " + message.getKey() + " value " + text(message.getValue()));
                }
                consumer.acknowledge(message);
            }
        }
    }

    private static String text(Object value) {
        if (!(value instanceof GenericRecord record)) {
            return String.valueOf(value);
        }
        List<String> fields = new ArrayList<>();
        for (Field field : record.getFields()) {
            fields.add(field.getName() + "=" + text(record.getField(field)));
        }
        return "{" + String.join(", ", fields) + "}";
    }
}
