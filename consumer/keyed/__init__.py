"""Keyed state: processors with state and timers by key, and streams with operators. Needs the extra `[keyed]`."""

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
    from broadsheet.consumer.keyed.imports.loading import StateImport as StateImport
    from broadsheet.consumer.keyed.operators.aggregate import (
        Aggregate as Aggregate,
        count as count,
        distinct as distinct,
        last as last,
        max_ as max_,
        mean as mean,
        min_ as min_,
        quantiles as quantiles,
        sum_ as sum_,
    )
    from broadsheet.consumer.keyed.operators.application import (
        StreamApplication as StreamApplication,
        StreamOptions as StreamOptions,
        StreamStore as StreamStore,
    )
    from broadsheet.consumer.keyed.operators.builder import (
        KeyedStream as KeyedStream,
        Stream as Stream,
        WindowedStream as WindowedStream,
        stream as stream,
        until as until,
    )
    from broadsheet.consumer.keyed.operators.expressions import col as col, lit as lit
    from broadsheet.consumer.keyed.operators.windows import (
        hopping as hopping,
        session as session,
        spanning as spanning,
        tumbling as tumbling,
    )
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
