import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * A worker of the Kinesis Client Library, of version 2 or 3: {@code KclWorker ENDPOINT STREAM TABLE NAME FAILOVER_MS}.
 *
 * It prints {@code record SHARD DATA} for each record, then checkpoints; {@code began SHARD}, {@code lost SHARD} and
 * {@code ended SHARD}. SIGTERM stops it gracefully.
 */
public class KclWorker {
    static class Printer implements ShardRecordProcessor {
        private String shard;

        public void initialize(InitializationInput input) {
            shard = input.shardId();
            say("began", shard);
        }

        public void processRecords(ProcessRecordsInput input) {
            input.records().forEach(each -> say("record", shard + " " + StandardCharsets.UTF_8.decode(each.data())));
            checkpoint(input.checkpointer());
        }

        public void leaseLost(LeaseLostInput input) {
            say("lost", shard);
        }

        public void shardEnded(ShardEndedInput input) {
            checkpoint(input.checkpointer());
            say("ended", shard);
        }

        public void shutdownRequested(ShutdownRequestedInput input) {
            checkpoint(input.checkpointer());
            say("requested", shard);
        }

        private void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (Exception error) {
                say("refused", shard + " " + error);
            }
        }
    }

    static synchronized void say(String what, String told) {
        System.out.println(what + " " + told);
        System.out.flush();
    }

    static <B extends AwsClientBuilder<B, C>, C> C client(B builder, String endpoint) {
        return builder.endpointOverride(URI.create(endpoint))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test")))
                .build();
    }

    public static void main(String[] arguments) throws Exception {
        String endpoint = arguments[0];
        String stream = arguments[1];
        // The double of AWS does not speak HTTP/2, which the client would begin with.
        KinesisAsyncClient kinesis = client(
                KinesisAsyncClient.builder()
                        .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(Protocol.HTTP1_1)),
                endpoint);
        ConfigsBuilder configs = new ConfigsBuilder(
                new SingleStreamTracker(
                        stream,
                        InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON)),
                arguments[2],
                kinesis,
                client(DynamoDbAsyncClient.builder(), endpoint),
                client(CloudWatchAsyncClient.builder(), endpoint),
                arguments[3],
                Printer::new);
        Scheduler scheduler = new Scheduler(
                configs.checkpointConfig(),
                configs.coordinatorConfig().parentShardPollIntervalMillis(500),
                configs.leaseManagementConfig()
                        .failoverTimeMillis(Long.parseLong(arguments[4]))
                        .shardSyncIntervalMillis(2_000)
                        .leasesRecoveryAuditorExecutionFrequencyMillis(2_000),
                configs.lifecycleConfig(),
                configs.metricsConfig().metricsFactory(new NullMetricsFactory()),
                configs.processorConfig(),
                configs.retrievalConfig()
                        .retrievalSpecificConfig(new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(250)));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                say("stopped", String.valueOf(scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS)));
            } catch (Exception error) {
                say("stopped", error.toString());
            }
        }));
        scheduler.run();
    }
}
