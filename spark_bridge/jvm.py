"""The parts of a Spark session that PySpark has no interface to: the one place that reaches them."""

# ruff: noqa: SLF001 - PySpark names these attributes as private, and has no other way

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


# `Any`: what Py4J returns has the JVM's types.
def jvm_context_of(context: SparkContext) -> Any:
    """Return the `org.apache.spark.SparkContext` of a session."""
    return context._jsc.sc()


def jvm_of(context: SparkContext) -> Any:
    """Return the view of the driver's JVM, by which its classes are found."""
    return context._jvm


def gateway_of(context: SparkContext) -> Any:
    """Return the Py4J gateway to the driver's JVM."""
    return context._gateway


def temporary_directory_of(context: SparkContext) -> str:
    """Return the directory of PySpark's own files for executors, which goes with the session."""
    return str(context._temp_dir)


def python_includes_of(context: SparkContext) -> list[str]:
    """Return the names of the archives that executors import from."""
    includes: list[str] = context._python_includes or []
    return includes
