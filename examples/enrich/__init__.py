"""Rows of a DataFrame, enriched by what live shards know at that moment."""
