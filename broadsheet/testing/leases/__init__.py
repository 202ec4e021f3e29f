"""Conformance suites of lease stores and of sources of records."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.testing.leases.source_suite import (
        RecordSourceConformance as RecordSourceConformance,
        RecordSourceSubject as RecordSourceSubject,
    )
    from broadsheet.testing.leases.suite import (
        RecordStoreConformance as RecordStoreConformance,
        RecordStoreSubject as RecordStoreSubject,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
