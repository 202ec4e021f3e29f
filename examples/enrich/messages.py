"""Messages of the journals, and the mapping of journals to shards."""

from __future__ import annotations

from typing import Final

import msgspec

from broadsheet.journals import JsonStructType, Meta


class Payment(msgspec.Struct):
    """A payment that was made. Messages of one account are in the order of `paid_at`."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    account: str = ""
    cents: int = 0
    country: str = ""
    paid_at: int = 0
    """Seconds since the Unix epoch."""


PAYMENTS: Final = JsonStructType(Payment)
PAYMENT_JOURNALS: Final = tuple(f"enrich/payments/part-{index:03d}" for index in range(4))
SHARDS: Final = tuple(f"enrich/profiles-{index:03d}" for index in range(4))
