"""Alerts of shards in Delta and Iceberg tables, compacted meanwhile, and read by DuckDB."""
