"""Reads state by key in Spark tasks, through a `TaskResolver`.

    features = KeyedReader(TaskResolver(cluster, mapping="modulo"), columns=("clicks", "spent"))  # on the driver

    def scored(rows):                                                                          # in a task
        for row in rows:
            yield score(row, features.get(row.user))

Values are those of Arrow, exact: integers of 64 bits, decimals, timestamps. Calls follow shards to their primaries, and
answers have read through the resolver's token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from broadsheet.consumer.client.keyed_client import key_message
from broadsheet.consumer.stores.keyed_queries import KEYS_MAX
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.task_resolver import TaskResolver
from broadsheet.wire.keyed_pb2 import (
    KEYED_ENCODING_ARROW,
    DescribeKeyedRequest,
    DescribeKeyedResponse,
    GetKeysRequest,
    GetKeysResponse,
    ListTimersRequest,
    ScanKeysRequest,
)
from broadsheet.wire.keyed_pb2_grpc import KeyedServiceStub

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]
ShardKey = Callable[[Key], str | bytes]
_TEXTS: Final = {True: "true", False: "false"}


def first_field(key: Key) -> str | bytes:
    """Return the first field of a key as publishers hash it: texts and bytes as they are, integers as digits.

    Raises:
        ValidationError: it has another type; `KeyedReader` takes a function for such keys.
    """
    value = key[0] if key else None
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return _TEXTS[value]
    if isinstance(value, int):
        return str(value)
    raise ValidationError(
        "key[0]",
        f"expected text, bytes, an integer or a truth value, got {value!r:.80}; for others, give the reader a "
        "function `shard_key` that returns what their publishers hash",
    )


class KeyedReader:
    """Looks keys up in the shards that have them. It can be pickled, so closures carry it to tasks."""

    def __init__(
        self,
        resolver: TaskResolver,
        *,
        table: str = "",
        columns: Sequence[str] = (),
        shard_key: ShardKey = first_field,
        shard: str = "",
    ) -> None:
        """Describe it; nothing is asked yet.

        Args:
            resolver: With the mapping of the publishers, unless `shard` is given.
            table: Of the shards' state; empty: their only one. Those of a stream are `operator_1` and so on.
            columns: Of the table; none: all.
            shard_key: Returns what publishers hash of a key.
            shard: The shard that has all keys; empty: by the resolver's mapping.
        """
        self._resolver = resolver
        self._table = table
        self._columns = tuple(columns)
        self._shard_key = shard_key
        self._shard = shard

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return the row of a key; None if it has no state.

        Raises:
            ValidationError: it has several rows, as keys of a stream's windows have: use `rows`.
            grpc.RpcError: a table, column or key does not fit (INVALID_ARGUMENT), among others of `TaskResolver.stub`.
        """
        rows = self.rows(*key)
        if len(rows) > 1:
            raise ValidationError("key", f"expected one row, got {len(rows)}: use `rows`")
        return rows[0] if rows else None

    def rows(self, *key: Any) -> list[dict[str, Any]]:
        """Return all rows of a key: of a stream, its open windows or sessions."""
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[Key]) -> list[list[dict[str, Any]]]:
        """Return the rows of each key, in the order of the keys: one call for each shard and 1,000 keys."""
        wanted = [tuple(key) for key in keys]
        found: list[list[dict[str, Any]]] = [[] for _ in wanted]
        for shard, places in self._by_shard(wanted).items():
            for begin in range(0, len(places), KEYS_MAX):
                part = places[begin : begin + KEYS_MAX]
                response = self._look_up(shard, [wanted[place] for place in part])
                rows = _table_of(response.arrow).to_pylist()
                for number, row in zip(response.key_numbers, rows, strict=True):
                    found[part[number]].append(row)
        return found

    def scan(
        self, prefix: Sequence[Any] = (), *, text_prefix: str = "", page_size: int = 0
    ) -> Iterator[pa.Table]:
        """Yield pages of the keys that begin so, shard after shard; each page is of one commit.

        Args:
            prefix: Leading fields; none: all keys.
            text_prefix: How the next field begins, which is text.
            page_size: Keys of a page at most; 0: 1,000.
        """
        for shard in self._shards():
            request = ScanKeysRequest(
                shard=shard,
                table=self._table,
                columns=self._columns,
                prefix=key_message(prefix),
                text_prefix=text_prefix,
                page_size=page_size,
                encoding=KEYED_ENCODING_ARROW,
            )
            while True:
                response = self._stub(shard).ScanKeys(request)
                yield _table_of(response.arrow)
                if not response.cursor:
                    break
                request.cursor = response.cursor

    def timers(
        self, *key: Any, from_ms: int | None = None, until_ms: int | None = None
    ) -> Iterator[pa.Table]:
        """Yield pages of timers: of one key, or shard after shard of all; columns are `due_ms` and the key's.

        Args:
            key: Whose; none: of all keys.
            from_ms: First time, Unix milliseconds.
            until_ms: Last time.
        """
        for shard in [self._shard_of(key)] if key else self._shards():
            request = ListTimersRequest(
                shard=shard,
                table=self._table,
                key=key_message(key) if key else None,
                from_ms=from_ms,
                until_ms=until_ms,
                encoding=KEYED_ENCODING_ARROW,
            )
            while True:
                response = self._stub(shard).ListTimers(request)
                yield _table_of(response.arrow)
                if not response.cursor:
                    break
                request.cursor = response.cursor

    def describe(self) -> DescribeKeyedResponse:
        """Return the tables of the first shard, their keys and variables."""
        shard = self._shards()[0]
        response: DescribeKeyedResponse = self._stub(shard).DescribeKeyed(
            DescribeKeyedRequest(shard=shard)
        )
        return response

    def _look_up(self, shard: str, keys: Sequence[Key]) -> GetKeysResponse:
        response: GetKeysResponse = self._stub(shard).GetKeys(
            GetKeysRequest(
                shard=shard,
                table=self._table,
                columns=self._columns,
                keys=map(key_message, keys),
                encoding=KEYED_ENCODING_ARROW,
            )
        )
        return response

    def _by_shard(self, keys: Sequence[Key]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            found.setdefault(self._shard_of(key), []).append(place)
        return found

    def _shard_of(self, key: Key) -> str:
        return self._shard or self._resolver.shard_of(self._shard_key(key))

    def _shards(self) -> Sequence[str]:
        return (self._shard,) if self._shard else self._resolver.shards

    def _stub(self, shard: str) -> Any:
        return self._resolver.stub_of_shard(shard, KeyedServiceStub)


def _table_of(content: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(content) as stream:
        return stream.read_all()
