"""Exactly-once, stateful, highly available shards: the names that most programs need.

The parts built on Spark are in `broadsheet.spark`. Names are imported on first access, because every import of a
package below runs this module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadsheet.consumer import Application as Application
    from broadsheet.consumer import JsonType as JsonType
    from broadsheet.consumer import ShardClient as ShardClient

_HOMES = {
    "Application": "broadsheet.consumer",
    "JsonType": "broadsheet.consumer",
    "ShardClient": "broadsheet.consumer",
}
__all__ = ["Application", "JsonType", "ShardClient"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
