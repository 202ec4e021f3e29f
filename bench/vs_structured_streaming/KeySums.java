import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/** Counts and sums {@code v} by {@code k}: java KeySums servers rows-topic sums-topic state-directory. */
public final class KeySums {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "sums-of-" + arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 5);
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[1])
                .groupByKey()
                // "n total", which is quicker to read again than JSON.
                .aggregate(() -> "0 0", (key, row, sums) -> add(sums, row))
                .toStream()
                .mapValues(KeySums::result)
                .to(arguments[2]);

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener(
                (now, before) -> {
                    if (now == KafkaStreams.State.RUNNING) {
                        System.out.println("{\"started\": " + ProcessHandle.current().pid() + "}");
                    }
                });
        streams.start();
    }

    private static String add(String sums, String row) {
        int space = sums.indexOf(' ');
        long n = Long.parseLong(sums, 0, space, 10) + 1;
        try {
            JsonNode found = JSON.readTree(row);
            return n + " " + (Long.parseLong(sums, space + 1, sums.length(), 10) + found.get("v").asLong());
        } catch (java.io.IOException error) {
            throw new IllegalArgumentException(row, error);
        }
    }

    private static String result(String key, String sums) {
        int space = sums.indexOf(' ');
        return "{\"k\":\"" + key + "\",\"n\":" + sums.substring(0, space)
                + ",\"total\":" + sums.substring(space + 1) + "}";
    }
}
