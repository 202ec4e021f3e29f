"""A deterministic simulator of shards: the real runtime, a broker and stores in memory, one seed for everything."""
