"""Messages as rows of a lake table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.relay.outlet import Outlet
from broadsheet.consumer.relay.sink_labels import SINK_KEY, SINK_SET, Sink, SinkKind
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    from broadsheet.consumer.stores.delta.store import DeltaStore
    from broadsheet.consumer.stores.iceberg.store import IcebergStore

JOURNAL, OFFSET = "_journal", "_offset"
PLACE: Final = pa.schema([pa.field(JOURNAL, pa.string()), pa.field(OFFSET, pa.int64())])
"""Columns that say where a row's message begins: a journal and offset twice would be a row twice."""
_OF_MESSAGES: Final = "_meta"
"""Our own part of JSON messages: UUID and trace."""


class TableOutlet(Outlet):
    """Appends the columns of messages to a table; a column that it lacks is added to it."""

    def __init__(self, shard: Shard, sink: Sink) -> None:
        """Check the sink; nothing is opened.

        Raises:
            ValidationError: a label or a setting is not possible.
        """
        if sink.key:
            raise ValidationError(
                f"labels[{SINK_KEY}]", "expected none: rows of tables have no keys"
            )
        self._rows = _opened(shard, sink)
        super().__init__(self._rows)

    def take(self, batch: MessageBatch) -> None:
        """Append the rows of a batch."""
        rows = batch.to_arrow()
        kept = [name for name in rows.column_names if name != _OF_MESSAGES]
        taken = rows.select(kept)
        if rows.num_rows == len(batch):
            # A message that holds many rows has one place, which does not tell them apart.
            taken = taken.append_column(PLACE.field(0), pa.array([batch.journal] * len(batch)))
            taken = taken.append_column(PLACE.field(1), pa.array(batch.begins))
        self._rows.append(taken)


def _opened(shard: Shard, sink: Sink) -> DeltaStore | IcebergStore:
    refuse_table_secrets(sink.settings)
    settings = read_files(sink.settings)
    if sink.kind is SinkKind.DELTA:
        with needing("the relay to Delta", extra="delta"):
            from broadsheet.consumer.stores.delta.store import DeltaStore
        return DeltaStore(shard, sink.to, schema=PLACE, storage_options=settings)
    with needing("the relay to Iceberg", extra="iceberg"):
        from broadsheet.consumer.stores.iceberg.store import IcebergStore
    return IcebergStore(shard, sink.to, settings, schema=PLACE)


def refuse_table_secrets(settings: Mapping[str, str]) -> None:
    """Refuse secrets where everyone who may list shards reads them.

    Raises:
        ValidationError: a setting whose name says that it is a secret is there as itself.
    """
    for name, value in settings.items():
        words = ("secret", "password", "token", "credential", "account_key")
        if any(word in name.lower() for word in words) and not value.startswith("@"):
            raise ValidationError(
                f"{SINK_SET}{name}", "expected @FILE, a file on each member: it is a secret"
            )
