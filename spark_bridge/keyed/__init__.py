"""Spark's `StatefulProcessor` on shards, as it is, without a JVM. Needs the extras `[spark]` and `[keyed]`."""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.spark_bridge.cluster.query_plan import QueryShards as QueryShards
    from broadsheet.spark_bridge.keyed.application import (
        HostingOptions as HostingOptions,
        StatefulProcessorApplication as StatefulProcessorApplication,
    )
    from broadsheet.spark_bridge.keyed.initial_state import InitialState as InitialState
    from broadsheet.spark_bridge.keyed.take_over.import_state import (
        ImportReport as ImportReport,
        import_state as import_state,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
