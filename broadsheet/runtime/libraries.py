"""Libraries that a bare installation lacks: the extra that brings each, and the error of what needs one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from broadsheet.runtime.errors import ExtraMissingError

EXTRAS: Mapping[str, tuple[str, str]] = {
    "aiohttp": ("azure", "aiohttp"),
    "azure": ("azure", "azure-storage-blob and azure-eventhub"),
    "boto3": ("aws", "boto3"),
    "botocore": ("aws", "boto3"),
    "cloudpickle": ("spark", "cloudpickle"),
    "confluent_kafka": ("kafka", "confluent-kafka"),
    "cramjam": ("stores", "cramjam"),
    "deltalake": ("delta", "deltalake"),
    "datasketches": ("aggregate", "datasketches"),
    "fastavro": ("avro", "fastavro"),
    "obstore": ("stores", "obstore"),
    "opentelemetry": ("otel", "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"),
    "orjson": ("spark", "orjson"),
    "pandas": ("spark", "pandas"),
    "polars": ("polars", "polars and pyarrow"),
    "psutil": ("spark", "psutil"),
    "psycopg": ("postgresql", "psycopg"),
    "pyiceberg": ("iceberg", "pyiceberg"),
    "pyarrow": ("spark", "pyarrow"),
    "pyspark": ("spark", "pyspark"),
    "rocksdict": ("rocksdb", "rocksdict"),
    "zstandard": ("keyed", "zstandard"),
}
"""By top-level module that a bare installation lacks: the extra that provides it, and the packages to name."""


@contextmanager
def needing(what: str, *, extra: str = "") -> Iterator[None]:
    """Name the extra to install if a library is missing in the block.

    Args:
        what: The feature, as its user calls it.
        extra: The extra that has all that the feature needs; empty: the one of the missing library.

    Raises:
        ExtraMissingError: it is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_library(what, error, extra=extra)
        if missing is None or isinstance(error, ExtraMissingError):
            raise
        raise missing from error


def missing_library(
    what: str, error: ModuleNotFoundError, *, extra: str = ""
) -> ImportError | None:
    """Return the error of a feature whose library is missing; None if no extra brings the module.

    Args:
        what: The feature, as its user calls it.
        error: Of the import.
        extra: As of `needing`.
    """
    root = (error.name or "").partition(".")[0]
    if root not in EXTRAS:
        return None
    if root != error.name and _is_there(root):
        return _too_old(what, root, error)
    of_library, packages = EXTRAS[root]
    return ExtraMissingError(what, extra or of_library, packages, module=error.name or "")


def _is_there(package: str) -> bool:
    # Imported here, because every import of a package of ours imports this module.
    from importlib.util import find_spec

    return find_spec(package) is not None


def _too_old(what: str, package: str, error: ModuleNotFoundError) -> ImportError:
    """Return the error of a name whose library is there, and lacks a module: to install it would change nothing."""
    present = getattr(import_module(package), "__version__", "unknown")
    return ImportError(
        f"{what} needs another version of {package}: {present} has no {error.name}; "
        f"docs/dependencies.md says which are supported",
        name=error.name,
    )
