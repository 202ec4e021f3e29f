"""The state of a stopped query of Spark's as an import that shards begin with."""
