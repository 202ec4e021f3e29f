"""Libraries that a bare installation lacks: the extra that brings each, and the error of what needs one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType, TracebackType

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
    "httpx2": ("schema-registry", "confluent-kafka[schemaregistry,protobuf,json]"),
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
    "sqlalchemy": ("sql", "sqlalchemy"),
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


def tell_missing_libraries(extras: Mapping[str, str] = MappingProxyType({})) -> None:
    """Have a program of `python -m` that ends for want of an extra's library say so in one line, without a traceback.

    Called by a package whose modules are such programs, as it is imported. It changes nothing where the package is
    imported by another program: only while `-m` looks for its module is that the program's name.

    Args:
        extras: By module: the extra that has all that the program needs; by default that of the missing library.
    """
    if sys.argv[:1] != ["-m"]:
        return
    program = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    show = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told: BaseException | None = error
        if isinstance(error, ModuleNotFoundError) and not isinstance(error, ExtraMissingError):
            told = missing_library(program, error, extra=extras.get(program, ""))
        if isinstance(told, ExtraMissingError):
            print(f"error: {told}", file=sys.stderr)
        else:
            show(kind, error, trace)

    sys.excepthook = tell


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
