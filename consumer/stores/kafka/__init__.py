"""Kafka as a store: records and the shard's checkpoint in one Kafka transaction. Needs the extra `[kafka]`."""
