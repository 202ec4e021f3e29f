"""`shardctl kafka`: what shards have in Kafka."""
