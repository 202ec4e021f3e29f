import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/** Carries a topic into another: java Carry servers from to state-directory [name=value ...]. */
public final class Carry {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "carries-" + arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 5);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.producerPrefix("linger.ms"), 0);
        settings.put("auto.offset.reset", "earliest");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        for (int index = 4; index < arguments.length; index++) {
            int equals = arguments[index].indexOf('=');
            settings.put(arguments[index].substring(0, equals), arguments[index].substring(equals + 1));
        }

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1]).to(arguments[2]);

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener(
                (now, before) -> {
                    if (now == KafkaStreams.State.RUNNING) {
                        System.out.println("{\"started\": " + ProcessHandle.current().pid() + "}");
                    }
                });
        streams.start();
    }
}
