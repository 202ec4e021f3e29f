"""A deterministic simulator of shards: the real runtime, brokers and stores in memory, one seed for all that happens."""
