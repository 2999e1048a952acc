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
 * `key {a=1} value {b=2}`, `value null` for a tombstone. Started as: AutoConsume SERVICE_URL TOPIC COUNT.
 */
public final class AutoConsume {
    private AutoConsume() {}

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(args[1])
                        .subscriptionName("java").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                Message<GenericRecord> message = consumer.receive(30, TimeUnit.SECONDS);
                KeyValue<?, ?> pair = (KeyValue<?, ?>) message.getValue().getNativeObject();
                System.out.println("key " + text(pair.getKey()) + " value " + text(pair.getValue()));
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
