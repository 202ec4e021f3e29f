"""Compares the shards' results with one query over the file: every aircraft, every alert, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame

from broadsheet.examples.flights.flights_pb2 import Aircraft
from broadsheet.examples.flights.messages import ALERT_LATE_MINUTES

_SHOWN_MAX = 10
"""Differences listed of each kind; one is enough to fail."""


class Totals(NamedTuple):
    """The totals of one aircraft."""

    flights: int
    legs: int
    late_minutes: int
    turnarounds: int
    ground_minutes: int
    longest_gap_minutes: int
    alerts: int


class AlertKey(NamedTuple):
    """The content of an alert."""

    aircraft: str
    carrier: str
    flight: int
    origin: str
    destination: str
    scheduled_at: int
    late_minutes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of the comparison."""

    flights: int
    """Messages that the shards counted."""
    aircraft_equal: int
    alerts_equal: int
    differences: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """True if nothing is missing, duplicated or different."""
        return not self.differences


def expected_aircraft(flights: DataFrame) -> dict[str, Totals]:
    """Compute every aircraft's totals with one Spark SQL query."""
    flights.createOrReplaceTempView("flights")
    query = (Path(__file__).parent / "expected.sql").read_text()
    rows = flights.sparkSession.sql(query).collect()
    return {row.aircraft: Totals(**{name: row[name] for name in Totals._fields}) for row in rows}


def expected_alerts(flights: DataFrame) -> Counter[AlertKey]:
    """Return every alert that there must be."""
    late = flights.where(flights.late_minutes > ALERT_LATE_MINUTES)
    return alerts_of(late)


def live_totals(aircraft: Iterable[Aircraft]) -> dict[str, Totals]:
    """Turn the shards' answers into totals by tail number.

    Raises:
        ValueError: two shards have the same aircraft.
    """
    found: dict[str, Totals] = {}
    for one in aircraft:
        if one.aircraft in found:
            raise ValueError(f"aircraft {one.aircraft} is in two shards")
        found[one.aircraft] = Totals(*(getattr(one, name) for name in Totals._fields))
    return found


def alerts_of(alerts: DataFrame) -> Counter[AlertKey]:
    """Return the alerts that came back into Spark, each as often as it is there."""
    return Counter(AlertKey(*row) for row in alerts.select(*AlertKey._fields).collect())


def compare(
    *,
    expected: Mapping[str, Totals],
    live: Mapping[str, Totals],
    expected_alerts: Counter[AlertKey],
    alerts: Counter[AlertKey],
) -> Comparison:
    """Compare everything with everything."""
    names = expected.keys() | live.keys()
    wrong = sorted(name for name in names if expected.get(name) != live.get(name))
    missing, surplus = expected_alerts - alerts, alerts - expected_alerts
    differences = [
        f"aircraft {name}: expected {expected.get(name)}, shards have {live.get(name)}"
        for name in wrong[:_SHOWN_MAX]
    ]
    if len(wrong) > _SHOWN_MAX:
        differences.append(f"and {len(wrong) - _SHOWN_MAX} further aircraft")
    for what, found in (("missing", missing), ("not expected, or twice", surplus)):
        if found:
            differences.append(f"{found.total()} alerts {what}, e.g. {next(iter(found))}")
    return Comparison(
        flights=sum(totals.flights for totals in live.values()),
        aircraft_equal=len(names) - len(wrong),
        alerts_equal=(expected_alerts & alerts).total(),
        differences=tuple(differences),
    )
