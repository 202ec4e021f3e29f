"""Lazily imported public names of a package.

Such a package's `__init__.py` lists its names three times: for type checkers (imports under TYPE_CHECKING), for people
and tools (`__all__`), and for Python (the module that defines each name). tests/unit/docs/test_doors.py keeps the three
alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from broadsheet.allocator.errors import ExtraMissingError

EXTRAS: Mapping[str, tuple[str, str]] = {
    "aiohttp": ("azure", "aiohttp"),
    "azure": ("azure", "azure-storage-blob and azure-eventhub"),
    "boto3": ("aws", "boto3"),
    "botocore": ("aws", "boto3"),
    "cloudpickle": ("spark", "cloudpickle"),
    "confluent_kafka": ("kafka", "confluent-kafka"),
    "datasketches": ("aggregate", "datasketches"),
    "opentelemetry": ("otel", "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"),
    "orjson": ("spark", "orjson"),
    "pandas": ("spark", "pandas"),
    "psutil": ("spark", "psutil"),
    "psycopg": ("postgresql", "psycopg"),
    "pyarrow": ("spark", "pyarrow"),
    "pyspark": ("spark", "pyspark"),
    "rocksdict": ("rocksdb", "rocksdict"),
}
"""By top-level module that a bare installation lacks: the extra that provides it, and the packages to name."""


def lazy_names(
    door: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        door: The package's `__name__`.
        homes: The module that defines each public name.

    Raises:
        ExtraMissingError: raised by `__getattr__`: the name needs an extra that is not installed.
    """

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        try:
            found: object = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            # Any other missing module is a defect of ours or of the installation, and must not be hidden.
            if extra is None:
                raise
            raise ExtraMissingError(f"{door}.{name}", *extra, module=error.name or "") from error
        # The next access finds the name in the package, without this function.
        setattr(sys.modules[door], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[door]), *homes})

    return find, names
