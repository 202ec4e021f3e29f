"""The running totals of one aircraft, updated flight by flight. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.examples.flights.messages import ALERT_LATE_MINUTES, Alert, Flight


@dataclass(slots=True)
class Aircraft:
    """The running totals of one aircraft. `expected.sql` says the same in one query."""

    flights: int = 0
    """Messages, cancelled flights included."""
    legs: int = 0
    """Departures."""
    late_minutes: int = 0
    """Sum of positive arrival delays."""
    turnarounds: int = 0
    """Take-offs from New York that followed a landing we know the time of."""
    ground_minutes: int = 0
    """Sum over turnarounds of the minutes between that landing and the take-off."""
    longest_gap_minutes: int = 0
    """The longest of them."""
    alerts: int = 0
    landed_at: int | None = None
    """Landing of the last leg, minutes since the Unix epoch; absent if it is not known."""

    def add(self, flight: Flight) -> Alert | None:
        """Take one more flight into account; return the alert that it causes, if any.

        Requires:
            Flights of one aircraft are added in the order of their departure.
        """
        self.flights += 1
        if flight.cancelled:
            return None
        self.legs += 1
        self._add_gap(flight.departs_at)
        air_minutes = flight.air_minutes
        self.landed_at = None if air_minutes is None else flight.departs_at + air_minutes
        late_minutes = flight.late_minutes or 0
        self.late_minutes += max(late_minutes, 0)
        if late_minutes <= ALERT_LATE_MINUTES:
            return None
        self.alerts += 1
        return Alert(
            aircraft=flight.aircraft,
            carrier=flight.carrier,
            flight=flight.flight,
            origin=flight.origin,
            destination=flight.destination,
            scheduled_at=flight.scheduled_at,
            late_minutes=late_minutes,
        )

    def _add_gap(self, departs_at: int) -> None:
        # 117 rows of the file say that an aircraft left before it had landed: errors in the data, not turnarounds.
        if self.landed_at is None or departs_at < self.landed_at:
            return
        gap_minutes = departs_at - self.landed_at
        self.turnarounds += 1
        self.ground_minutes += gap_minutes
        self.longest_gap_minutes = max(self.longest_gap_minutes, gap_minutes)
