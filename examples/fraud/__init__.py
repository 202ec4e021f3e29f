"""Purchases that are scored, and counted, by the shard of their card: in one transaction each."""
