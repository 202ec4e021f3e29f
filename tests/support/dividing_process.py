"""A member that relays, as a process of its own, which is killed or stopped at a place of a division.

The place is armed by a file. Of several members the first one at the place takes it: it writes a file that names it,
and sends the signal to itself.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from broadsheet.consumer.member.journal_splitter import JournalSplitter
from broadsheet.consumer.shard.holding import ForkHolding
from broadsheet.consumer.shard.sources import Sources
from broadsheet.consumer.shard.transaction_loop import TransactionLoop
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.message.division import UNDIVIDED
from tests.support.dividing import MIDDLE, RecordedRelay
from tests.support.member_process import MemberProcess, main
from tests.support.members import Cluster

ARMED, TAKEN = "armed", "taken"
"""Files beside the databases."""


_PLACE, _SIGNAL = "BROADSHEET_TEST_PLACE", "BROADSHEET_TEST_SIGNAL"


class Place(NamedTuple):
    """Before or behind a call, in whichever member makes it."""

    owner: type
    method: str
    behind: bool = False
    # `Any`: arguments of any method.
    counts: Callable[..., bool] = lambda *_, **__: True
    """Tells by the arguments whether a call counts."""
    whens: tuple[str, ...] = ("dividing",)
    """When it is armed: `first`, before the first message; `dividing`, before the division; `divided`, once that is
    asked for.
    """


_ONCE, _ALWAYS = ("first", "dividing"), ("first", "divided")


def _begins_in_the_middle(_: Any, journal: str, *__: Any, **given: Any) -> bool:
    """Tell whether an append is the first of its publisher in the journal, or in a part."""
    return journal.startswith(MIDDLE) and given.get("check_registers") is UNDIVIDED


def _goes_on_in_the_middle(_: Any, journal: str, *__: Any, **given: Any) -> bool:
    return journal.startswith(MIDDLE) and given.get("check_registers") is None


def _acknowledges_in_the_middle(_: Any, intents: Mapping[str, bytes], **given: Any) -> bool:
    return not given["recovered"] and any(each.startswith(MIDDLE) for each in intents)


PLACES: Mapping[str, Place] = {
    "divider-before-the-parts": Place(JournalSplitter, "make_parts"),
    "divider-behind-the-parts": Place(JournalSplitter, "make_parts", True),
    "divider-behind-the-sources": Place(JournalSplitter, "give_parts", True),
    "divider-behind-the-register": Place(JournalSplitter, "close", True),
    "divider-behind-the-leaving": Place(JournalSplitter, "have_publishers_leave", True),
    "divider-behind-the-seal": Place(JournalSplitter, "seal", True),
    "divider-before-the-end": Place(JournalSplitter, "end_sources"),
    "divider-behind-the-end": Place(JournalSplitter, "end_sources", True),
    "publisher-before-it-begins": Place(
        AppendService, "append", False, _begins_in_the_middle, _ONCE
    ),
    "publisher-has-begun": Place(AppendService, "append", True, _begins_in_the_middle, _ONCE),
    "publisher-goes-on": Place(AppendService, "append", True, _goes_on_in_the_middle, _ALWAYS),
    "publisher-before-it-acknowledges": Place(
        TransactionLoop, "append_acks", False, _acknowledges_in_the_middle, _ALWAYS
    ),
    "publisher-has-acknowledged": Place(
        TransactionLoop, "append_acks", True, _acknowledges_in_the_middle, _ALWAYS
    ),
    "publisher-before-it-leaves": Place(ForkHolding, "settle"),
    "publisher-has-left": Place(ForkHolding, "settle", True),
    "reader-before-a-part": Place(Sources, "behind_seal"),
    "reader-begins-again": Place(Sources, "check"),
}


class DividingProcess(MemberProcess):
    """Starts one member that relays."""

    MODULE = "tests.support.dividing_process"

    def __init__(self, cluster: Cluster, name: str, place: str, number: signal.Signals) -> None:
        """Start the process.

        Args:
            cluster: Of the member.
            name: Of the member.
            place: At which it may take the signal; empty: nowhere.
            number: The signal.
        """
        environment = {_PLACE: place, _SIGNAL: number.name}
        state = str(cluster.directory / name)
        super().__init__(cluster, name, environment=environment, state_dir=state)


def take(directory: Path, number: signal.Signals) -> None:
    """End or stop this process if the place is armed, and no other process was ended or stopped there before."""
    if not (directory / ARMED).exists():
        return
    try:
        with (directory / TAKEN).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), number)


def arm(place: Place, directory: Path, number: signal.Signals) -> None:
    """Have this process end or stop at a place."""
    called: Any = getattr(place.owner, place.method)

    async def waits(*given: Any, **named: Any) -> Any:
        if place.behind:
            result = await called(*given, **named)
            take(directory, number)
            return result
        take(directory, number)
        return await called(*given, **named)

    def calls(*given: Any, **named: Any) -> Any:
        counts = place.counts(*given, **named)
        if counts and not place.behind:
            take(directory, number)
        result = called(*given, **named)
        if counts and place.behind:
            take(directory, number)
        return result

    setattr(place.owner, place.method, waits if inspect.iscoroutinefunction(called) else calls)


def _relay(cluster: Cluster) -> RecordedRelay:
    if place := os.environ[_PLACE]:
        arm(PLACES[place], cluster.directory, signal.Signals[os.environ[_SIGNAL]])
    return RecordedRelay(cluster.directory, output=cluster.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], _relay))
