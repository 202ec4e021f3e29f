"""Scores of purchases by what their cards did before. Pure, so that a replay of all purchases is the judge."""

from __future__ import annotations

import msgspec

HIGH_FACTOR = 5
"""A purchase of so many times the mean is unusual."""
HISTORY_MIN = 3
"""Purchases from which a mean says something."""
TRAVEL_MS = 60 * 60 * 1000
"""Two countries within an hour are unusual."""
BURST_MS = 10_000
"""Two purchases within so long are unusual."""
_POINTS_HIGH, _POINTS_TRAVEL, _POINTS_BURST = 50, 30, 20


class Purchase(msgspec.Struct, frozen=True):
    """A purchase with a card."""

    card: str
    cents: int
    country: str
    at_ms: int


class Score(msgspec.Struct, frozen=True):
    """The answer to a purchase: 0 to 100, and the card's counters with it."""

    score: int
    purchases: int
    cents_total: int


class Profile(msgspec.Struct, frozen=True):
    """The purchases of a card so far."""

    purchases: int = 0
    cents_total: int = 0
    last_country: str = ""
    last_at_ms: int = 0


def score(profile: Profile, purchase: Purchase) -> tuple[Profile, Score]:
    """Return the profile with the purchase, and the score of the purchase by the profile without it."""
    points = 0
    if profile.purchases:
        since = purchase.at_ms - profile.last_at_ms
        mean = profile.cents_total / profile.purchases
        if profile.purchases >= HISTORY_MIN and purchase.cents > HIGH_FACTOR * mean:
            points += _POINTS_HIGH
        if purchase.country != profile.last_country and since < TRAVEL_MS:
            points += _POINTS_TRAVEL
        if since < BURST_MS:
            points += _POINTS_BURST
    after = Profile(
        profile.purchases + 1,
        profile.cents_total + purchase.cents,
        purchase.country,
        max(profile.last_at_ms, purchase.at_ms),
    )
    return after, Score(points, after.purchases, after.cents_total)
