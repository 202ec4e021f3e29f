"""The judge: all purchases again, from the command journals, in one loop without shards.

python -m broadsheet.examples.fraud.replay --broker http://127.0.0.1:8081
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing

import msgspec

from broadsheet.examples.fraud.app import COMMANDS
from broadsheet.examples.fraud.rules import Profile, Purchase, Score, score
from broadsheet.journals import Flags, JournalClient, JsonType, read_committed

Answers = dict[str, Score]
"""By the purchase's id."""


def replayed(commands: Iterable[Mapping[str, object]]) -> tuple[dict[str, Profile], Answers]:
    """Return profiles by card, and the answer to each purchase, of commands in the order of their journals.

    Args:
        commands: Messages of the command journals. One that repeats an id counts once, one whose amount is refused
            not at all.
    """
    profiles: dict[str, Profile] = {}
    answers: Answers = {}
    seen: set[str] = set()
    for command in commands:
        purchase_id = str(command["id"])
        purchase = msgspec.convert(command["request"], Purchase)
        if purchase_id in seen:
            continue
        seen.add(purchase_id)
        if purchase.cents > 0:
            before = profiles.get(purchase.card, Profile())
            profiles[purchase.card], answers[purchase_id] = score(before, purchase)
    return profiles, answers


async def replay(broker: str) -> tuple[dict[str, Profile], Answers]:
    """Return profiles by card, and the answer to each purchase, as of what the command journals hold now."""
    commands: list[Mapping[str, object]] = []
    async with JournalClient(broker) as journals:
        for listed in (await journals.list()).journals:
            if not listed.spec.name.startswith(f"{COMMANDS}/"):
                continue
            batches = read_committed(journals, listed.spec.name, JsonType(), block=False)
            async with aclosing(batches):
                async for batch in batches:
                    commands += [
                        message
                        for flags, message in zip(batch.flags, batch.messages(), strict=True)
                        if flags != Flags.ACK_TXN
                    ]
    return replayed(commands)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="http://127.0.0.1:8081")
    profiles, _ = asyncio.run(replay(parser.parse_args().broker))
    for card, profile in sorted(profiles.items()):
        print(f"{card:12} {profile.purchases:8} {profile.cents_total / 100:12.2f}")
