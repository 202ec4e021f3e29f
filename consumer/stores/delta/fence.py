"""Names by which a Delta table and its folder know a shard.

A table's `txn` action of an application, here the shard, has a version. Delta gives it no order, so it fences nothing
by itself: a commit is refused if another of the same application came since the snapshot on which it rests, so a holder
writes through the handle alone with which it took the table.
"""

from __future__ import annotations

from urllib.parse import quote

from broadsheet.consumer.stores.table_version import TableVersion


def checkpoints_directory(shard_fqn: str) -> str:
    """Return the folder of a shard's checkpoints below the table, which no vacuum touches: it begins with `_`."""
    # Percent signs are decoded by some who read addresses of tables.
    return f"_broadsheet/{quote(shard_fqn.strip('/'), safe='').replace('%', '=')}"


def checkpoint_file(shard_fqn: str, version: TableVersion) -> str:
    """Return the file of a checkpoint below the table: no two holders have one name."""
    return f"{checkpoints_directory(shard_fqn)}/{version.encoded:016x}"
