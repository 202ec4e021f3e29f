"""A small application for tests: counts messages by key in SQLite, and echoes each to an output journal.

Whatever is lost or doubled shows: in the counts, and in the committed messages of the output.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
import sqlalchemy as sa

from broadsheet.consumer.application import Resolver, Shard
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.stores.json_file import JsonFileStore, decode_documents
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire import journal_pb2, shard_pb2

COUNT_METHOD = "/test.Tally/Count"
"""A method of the application's own: the shard's id in, the sum of its counts out, as text."""

_counts = sa.Table(
    "counts",
    sa.MetaData(),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("count", sa.Integer, nullable=False),
)


class Tally:
    """Counts and echoes; implements `Application` and `ServiceRegistrar`."""

    def __init__(self, directory: Path, *, output: str) -> None:
        """Keep databases in `directory`; publish to the journal `output` (nothing if empty)."""
        self._directory = directory
        self._output = output
        self._engines: list[sa.Engine] = []
        self.broken_by: str | None = None
        """A key whose messages make `consume_message` raise, for as long as this is set."""

    def new_store(self, shard: Shard) -> Any:
        """A SQLite file for each shard, shared by all members like a database server would be."""
        engine = sa.create_engine(f"sqlite:///{database_of(self._directory, shard.id)}")
        self._engines.append(engine)
        store = SqlStore(shard, engine)
        with engine.begin() as connection:
            _counts.create(connection, checkfirst=True)
        return store

    def message_type(self, journal_spec: journal_pb2.JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count the message and echo it."""
        if envelope.flags == 2:
            return
        key = envelope.message["key"]
        if key == self.broken_by:
            raise ValueError(f"cannot count {key}")
        self.count(store, key)
        if self._output:
            echo = {"key": key, "n": envelope.message["n"], "shard": shard.id}
            publisher.publish_uncommitted(MappedJournal(self._output, NDJSON), echo, JsonType())

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count. `Any`: each application has its own store."""
        store.connection.execute(
            sa.text(
                "INSERT INTO counts VALUES (:key, 1)"
                " ON CONFLICT (key) DO UPDATE SET count = count + 1"
            ),
            {"key": key},
        )

    def finalize_txn(self, shard: Shard, store: Any, publisher: Publisher) -> None:
        """Nothing is buffered."""

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Serve `COUNT_METHOD` from the primary's store."""

        async def count(request: bytes, context: Any) -> bytes:
            async with await resolver.resolve(
                request.decode(), claims=claims_of(context), may_proxy=False
            ) as resolution:
                if resolution.shard is None:
                    return shard_pb2.Status.Name(resolution.status).encode()
                return str(await resolution.call(total_of)).encode()

        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(count)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Tally", {"Count": handler}),)
        )

    def close(self) -> None:
        """Close every database."""
        for engine in self._engines:
            engine.dispose()


class JsonTally(Tally):
    """The same with JSON files."""

    def new_store(self, shard: Shard) -> Any:
        """A file for each shard."""
        return JsonFileStore(shard, self._directory, initial={}, state_type=dict[str, int])

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count."""
        store.state[key] = store.state.get(key, 0) + 1


def json_counts_in(directory: Path, shard_id: str) -> dict[str, int]:
    """What the shard's file has committed; nothing if there is none yet."""
    path = directory / quote(shard_id, safe="") / "state.json"
    if not path.exists():
        return {}
    state, _ = decode_documents(path.read_bytes())
    return msgspec.json.decode(state, type=dict[str, int])


def database_of(directory: Path, shard_id: str) -> Path:
    """The SQLite file of a shard."""
    return directory / f"{shard_id.replace('/', '_')}.db"


def counts_in(directory: Path, shard_id: str) -> dict[str, int]:
    """What the shard's database has committed; nothing if there is none yet."""
    path = database_of(directory, shard_id)
    if not path.exists():
        return {}
    engine = sa.create_engine(f"sqlite:///{path}")
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("counts"):
                return {}
            rows = connection.execute(sa.select(_counts.c.key, _counts.c.count))
            return {row.key: row[1] for row in rows}
    finally:
        engine.dispose()


def total_of(store: SqlStore) -> int:
    """The sum of a store's counts."""

    def read(connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(sa.func.sum(_counts.c.count))).scalar() or 0)

    return store.read(read)
