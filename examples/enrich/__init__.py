"""Enriches rows of a DataFrame with the current state of live shards."""
