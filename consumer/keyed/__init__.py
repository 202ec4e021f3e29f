"""Keyed state: processors with values, lists, maps and timers by key, over shards. Needs the extra `[keyed]`."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.keyed.application import (
        EventTime as EventTime,
        JournalOutput as JournalOutput,
        KeyedApplication as KeyedApplication,
        KeyedShardStore as KeyedShardStore,
        StateOptions as StateOptions,
    )
    from broadsheet.consumer.keyed.grouping import KeyRows as KeyRows
    from broadsheet.consumer.keyed.processor import (
        KeyedProcessor as KeyedProcessor,
        StateHandle as StateHandle,
        Timers as Timers,
    )
    from broadsheet.consumer.keyed.store import KeyedStore as KeyedStore
    from broadsheet.consumer.keyed.txn_time import TxnTime as TxnTime
    from broadsheet.consumer.keyed.variables import (
        ListState as ListState,
        MapState as MapState,
        ValueState as ValueState,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
