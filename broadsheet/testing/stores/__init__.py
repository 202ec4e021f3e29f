"""Conformance suites that any store of shards must pass."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.testing.stores.recorded_suite import (
        RecordedStoreConformance as RecordedStoreConformance,
    )
    from broadsheet.testing.stores.scan_suite import (
        RecordedScanConformance as RecordedScanConformance,
        ScanConformance as ScanConformance,
    )
    from broadsheet.testing.stores.subject import (
        RecordedSubject as RecordedSubject,
        StoreSubject as StoreSubject,
    )
    from broadsheet.testing.stores.suite import StoreConformance as StoreConformance

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
