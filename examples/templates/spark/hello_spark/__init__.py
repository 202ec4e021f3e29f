"""Counts messages by their key on Spark executors, exactly once."""
