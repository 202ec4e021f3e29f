"""Compacts both tables by Spark while shards write into them, and counts their rows. A job for `spark-submit`.

It needs Spark 4.1 and the formats' packages, and nothing of Broadsheet's: README has the command.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pyspark.sql import Row, SparkSession

CATALOG = "lakehouse"
"""A SQL catalog keeps its name with each table: it is the one that `shardctl sink iceberg` was told."""
DELTA = "delta.`{directory}/delta`"
ICEBERG = f"{CATALOG}.lake.alerts"
# Both kinds of catalog check that nothing came between, and Iceberg's repeats its commit if something did.
_COMPACT_ICEBERG = f"""
CALL {CATALOG}.system.rewrite_data_files(table => 'lake.alerts', options => map('min-input-files', '2'))
"""
_COUNT = "SELECT count(*) AS alerts, count(DISTINCT _journal, _offset) AS messages FROM {table}"


def session(directory: Path) -> SparkSession:
    """Return a session that knows both formats.

    Args:
        directory: Of the tables, and of the Iceberg table's catalog, which is a SQLite file.
    """
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    catalog = f"spark.sql.catalog.{CATALOG}"
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", value=False)
        .config("spark.sql.shuffle.partitions", 1)
        # The default is 50 of them, to read a log of some kilobytes.
        .config("spark.databricks.delta.snapshotPartitions", 1)
        .config("spark.sql.extensions", ",".join(extensions))
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{directory}/catalog.db?busy_timeout=30000")
        .config(f"{catalog}.warehouse", f"file://{directory}/warehouse")
        # Another program commits to the table, so none of its states is kept.
        .config(f"{catalog}.cache-enabled", value=False)
        .getOrCreate()
    )


def compact(spark: SparkSession, delta: str) -> str:
    """Join small files of both tables; return how many went, and how many came."""
    metrics = _only(spark, f"OPTIMIZE {delta}")["metrics"]
    rewritten = _only(spark, _COMPACT_ICEBERG)
    return (
        f"Delta {metrics['numFilesRemoved']} files into {metrics['numFilesAdded']}, "
        f"Iceberg {rewritten['rewritten_data_files_count']} into {rewritten['added_data_files_count']}"
    )


def count(spark: SparkSession, table: str) -> str:
    """Return how many rows a table has, and of how many messages they are: as many, if each is there once."""
    found = _only(spark, _COUNT.format(table=table))
    return f"{found['alerts']} alerts of {found['messages']} messages"


def _only(spark: SparkSession, statement: str) -> Row:
    (row,) = spark.sql(statement).collect()
    return row


def main() -> None:
    """Compact, some times; then count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="lakehouse", type=Path)
    parser.add_argument("--rounds", default=5, type=int, help="of compactions")
    parser.add_argument("--every", default=2.0, type=float, help="seconds between rounds")
    options = parser.parse_args()
    directory = options.directory.resolve()
    delta = DELTA.format(directory=directory)
    with session(directory) as spark:
        for number in range(1, options.rounds + 1):
            time.sleep(options.every)
            sys.stdout.write(f"round {number} of Spark: {compact(spark, delta)}\n")
        for name, table in (("Delta", delta), ("Iceberg", ICEBERG)):
            sys.stdout.write(f"{name}, as Spark reads it: {count(spark, table)}\n")


if __name__ == "__main__":
    main()
