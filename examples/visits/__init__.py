"""A job of Structured Streaming that moves to shards while its visits are open: docs/tutorials/streaming_query.md."""
