"""Messages of the journals."""

from __future__ import annotations

from typing import Final

import msgspec

from broadsheet.journals import JsonStructType, Meta

ALERT_LATE_MINUTES: Final = 120
"""An arrival later than this publishes an alert."""


class Flight(msgspec.Struct):
    """One flight out of New York. Messages of one aircraft are in the order of `departs_at`."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    aircraft: str = ""
    carrier: str = ""
    flight: int = 0
    origin: str = ""
    destination: str = ""
    scheduled_at: int = 0
    """Minutes since the Unix epoch, as is `departs_at`."""
    departs_at: int = 0
    """Departure; the scheduled one if it was cancelled."""
    cancelled: bool = False
    air_minutes: int | None = None
    """Absent if it did not arrive where it should."""
    late_minutes: int | None = None
    """Arrival delay, negative if early; absent like `air_minutes`."""


class Alert(msgspec.Struct):
    """An arrival more than two hours late."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    aircraft: str = ""
    carrier: str = ""
    flight: int = 0
    origin: str = ""
    destination: str = ""
    scheduled_at: int = 0
    late_minutes: int = 0


FLIGHTS: Final = JsonStructType(Flight)
ALERTS: Final = JsonStructType(Alert)
FLIGHT_JOURNALS: Final = tuple(f"flights/departures/part-{index:03d}" for index in range(8))
ALERT_JOURNALS: Final = tuple(f"flights/alerts/part-{index:03d}" for index in range(2))
