"""All that is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.powercut import brokers, staging, stores
from tests.powercut.subject import PowerCutSubject

SUBJECTS: Final[tuple[PowerCutSubject, ...]] = (
    *map(stores.PowerCutStore, stores.KINDS),
    brokers.PowerCutBroker(),
    brokers.PowerCutBroker("interval=5"),
    staging.PowerCutStaging(),
)


def modules_of(subjects: Sequence[PowerCutSubject]) -> list[str]:
    """Return what a nursery loads for some subjects."""
    modules = list(dict.fromkeys(each.module for each in subjects))
    # pyarrow imports pandas at its first conversion, which would be in each process again.
    return ["pandas", *modules] if stores.__name__ in modules else modules
