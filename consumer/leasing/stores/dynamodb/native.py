"""The layout of our own: the whole record as JSON, and beside it what conditions and the index need.

    key    S, HASH   the shard
    owner  S         the owner, while there is one
    epoch  N         acquisitions so far
    rev    N         writes so far
    record S         all of it

Nobody else writes here, so `rev` is all that a write compares, and a renewal changes two attributes. The index
`owner-key` (HASH owner, RANGE key) finds a worker's leases.
"""

from __future__ import annotations

from typing import Final

from consumer.leasing.codec import decode, encode
from consumer.leasing.record import LeaseRecord
from consumer.leasing.stores.dynamodb.layout import EPOCH, REV, reading
from consumer.leasing.stores.dynamodb.values import Item, Value, number, text, text_of

KEY: Final = "key"
OWNER: Final = "owner"
RECORD: Final = "record"
OWNER_INDEX: Final = "owner-key"


class NativeLayout:
    """Implements `consumer.leasing.stores.dynamodb.layout.Layout`."""

    key_name = KEY
    owner_name = OWNER
    owner_index = OWNER_INDEX
    guards = (REV,)

    def read(self, item: Item, known: Item | None) -> LeaseRecord | None:
        """Return the record."""
        key = str(item[KEY]["S"])
        with reading(key):
            return decode(text_of(item, RECORD) or "", key=key)

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the record, its owner and its epoch."""
        owner = {} if record.owner is None else {OWNER: text(record.owner)}
        return {**owner, EPOCH: number(record.epoch), RECORD: text(encode(record))}

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return nothing: nobody drops what is there."""
        return {}

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return the record as it is: observers watch the counter."""
        return after
