"""Shards that are split while they serve, and sinks into Kafka and tables."""
