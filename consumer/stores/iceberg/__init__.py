"""Iceberg tables as stores: rows and the shard's checkpoint in one commit of the table. Needs the extra `[iceberg]`."""
