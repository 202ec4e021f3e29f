"""Exactly-once, stateful, highly available shards: the names that most programs need.

The parts built on Spark are in `broadsheet.spark`. Names are imported on first access, because every import of a
package below runs this module.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer import Application as Application, ShardClient as ShardClient
    from broadsheet.journals import JsonType as JsonType
    from broadsheet.runtime import BroadsheetError as BroadsheetError

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
