"""Generates the demonstration's rows, the same in every run: payments, and orders to be compared with them."""

from __future__ import annotations

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - everyone calls it so
)

ACCOUNTS = 997
_BEGIN = 1_700_000_000
"""First payment, seconds since the Unix epoch."""
_COUNTRIES = "array('DE', 'FR', 'US', 'JP', 'BR')"


def payments_of(spark: SparkSession, count: int, *, first: int = 0) -> DataFrame:
    """Return payments number `first` to `first + count`, one a second."""
    return spark.range(first, first + count, 1, 2).selectExpr(
        f"concat('account-', pmod(xxhash64(id), {ACCOUNTS})) AS account",
        "CAST(100 + pmod(xxhash64(id, 1), 9900) AS INT) AS cents",
        f"{_COUNTRIES}[CAST(pmod(xxhash64(id, 2), 5) AS INT)] AS country",
        f"{_BEGIN} + id AS paid_at",
    )


def orders_of(spark: SparkSession, count: int) -> DataFrame:
    """Return orders; one account in some hundred has never paid."""
    return spark.range(0, count, 1, 2).selectExpr(
        "id AS number",
        f"concat('account-', pmod(xxhash64(id, 3), {ACCOUNTS + 10})) AS account",
        "CAST(100 + pmod(xxhash64(id, 4), 19900) AS INT) AS cents",
    )


def expected_profiles(payments: DataFrame) -> DataFrame:
    """Return what the shards should know once they have read the payments, by one query over them."""
    return payments.groupBy("account").agg(
        F.count("*").alias("payments"),
        F.sum("cents").alias("cents_total"),
        F.max("cents").cast("long").alias("cents_max"),
        F.max_by("country", "paid_at").alias("last_country"),
    )


def differences(enriched: DataFrame, payments: DataFrame) -> int:
    """Return how many enriched orders differ from a join of orders and payments."""
    names = ("payments", "cents_total", "cents_max")
    expected = expected_profiles(payments)
    joined = enriched.select("number", "account").join(expected, "account", "left")
    filled = joined.select(
        "number",
        *(F.coalesce(name, F.lit(0)).alias(name) for name in names),
        F.coalesce("last_country", F.lit("")).alias("last_country"),
    )
    mine = enriched.select("number", *names, "last_country")
    return mine.exceptAll(filled).count() + filled.exceptAll(mine).count()
