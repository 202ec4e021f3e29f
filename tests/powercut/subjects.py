"""All that is cut."""

from __future__ import annotations

from typing import Final

from tests.powercut import brokers, stores
from tests.powercut.subject import PowerCutSubject

SUBJECTS: Final[tuple[PowerCutSubject, ...]] = (
    *map(stores.PowerCutStore, stores.KINDS),
    brokers.PowerCutBroker(),
    brokers.PowerCutBroker("interval=5"),
)
MODULES: Final = ("pandas", *dict.fromkeys(each.module for each in SUBJECTS))
"""What a nursery loads. pyarrow imports pandas at its first conversion, which would be in each process anew."""
