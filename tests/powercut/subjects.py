"""All that is cut."""

from __future__ import annotations

from typing import Final

from tests.powercut import stores
from tests.powercut.subject import PowerCutSubject

SUBJECTS: Final[tuple[PowerCutSubject, ...]] = tuple(map(stores.PowerCutStore, stores.KINDS))
MODULES: Final = ("pandas", *dict.fromkeys(each.module for each in SUBJECTS))
"""What a nursery loads. pyarrow imports pandas at its first conversion, which would be in each process anew."""
