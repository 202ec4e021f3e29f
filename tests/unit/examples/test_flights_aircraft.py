"""The totals of an aircraft, flight by flight: the cases that the data really has."""

from __future__ import annotations

from broadsheet.examples.flights.aircraft import Aircraft
from broadsheet.examples.flights.messages import Alert, Flight


def _flight(departs_at: int, **changes: object) -> Flight:
    flight = Flight(aircraft="N1", carrier="UA", flight=7, origin="EWR", destination="IAH")
    flight.departs_at = departs_at
    flight.air_minutes, flight.late_minutes = 60, 0
    for name, value in changes.items():
        setattr(flight, name, value)
    return flight


def test_aircraft_two_legs_gap_is_from_landing_to_take_off() -> None:
    """The gap begins when the first leg has landed, an hour after it left."""
    aircraft = Aircraft()

    for flight in (_flight(1000), _flight(1500), _flight(1700)):
        aircraft.add(flight)

    assert aircraft == Aircraft(
        flights=3,
        legs=3,
        turnarounds=2,
        ground_minutes=580,
        longest_gap_minutes=440,
        landed_at=1760,
    )


def test_aircraft_cancelled_flight_counts_as_message_only() -> None:
    """It did not fly, so the gap spans it."""
    aircraft = Aircraft()

    for flight in (_flight(1000), _flight(1200, cancelled=True), _flight(1500)):
        aircraft.add(flight)

    assert (aircraft.flights, aircraft.legs, aircraft.longest_gap_minutes) == (3, 2, 440)


def test_aircraft_landing_unknown_next_gap_is_none() -> None:
    """A diverted flight has no landing time: the next take-off follows nothing we know."""
    aircraft = Aircraft()

    for flight in (_flight(1000, air_minutes=None, late_minutes=None), _flight(1500)):
        aircraft.add(flight)

    assert (aircraft.legs, aircraft.turnarounds) == (2, 0)


def test_aircraft_take_off_before_landing_is_no_turnaround() -> None:
    """117 rows say so; they are errors of the data."""
    aircraft = Aircraft()

    for flight in (_flight(1000), _flight(1059)):
        aircraft.add(flight)

    assert (aircraft.turnarounds, aircraft.ground_minutes) == (0, 0)


def test_aircraft_late_arrival_alerts_beyond_two_hours_only() -> None:
    """Early arrivals do not make up for late ones; exactly two hours is no alert."""
    aircraft = Aircraft()

    alerts = [
        aircraft.add(_flight(departs_at, late_minutes=late))
        for departs_at, late in ((1000, -30), (2000, 120), (3000, 121))
    ]

    assert alerts[:2] == [None, None]
    assert isinstance(alerts[2], Alert)
    assert alerts[2].late_minutes == 121
    assert (aircraft.late_minutes, aircraft.alerts) == (241, 1)
