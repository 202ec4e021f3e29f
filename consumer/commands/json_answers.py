"""Answers in the state of a `JsonFileStore`."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from broadsheet.consumer.commands.answers import KeptAnswer
from broadsheet.consumer.stores.json_file import JsonFileStore


class JsonAnswers:
    """Keeps answers in a field of a `JsonFileStore`'s state, which is a `dict[str, KeptAnswer]`.

    Each commit writes all of them, so this is for few commands.
    """

    # `Any`: the state's type is the application's own.
    def __init__(self, field: Callable[[Any], dict[str, KeptAnswer]]) -> None:
        """Use the dict that `field` returns of a state: `JsonAnswers(lambda state: state.answers)`."""
        self._field = field

    def get(self, store: JsonFileStore[Any], command_id: str) -> KeptAnswer | None:
        """Return the answer of a command; None if there is none."""
        return self._field(store.state).get(command_id)

    def keep(self, store: JsonFileStore[Any], command_id: str, answer: KeptAnswer) -> None:
        """Keep an answer in the running transaction."""
        self._field(store.state)[command_id] = answer

    def forget(self, store: JsonFileStore[Any], before_ms: int, limit: int) -> int:
        """Remove the oldest answers from before a time."""
        kept = self._field(store.state)
        old = sorted(
            (answer.at_ms, command_id)
            for command_id, answer in kept.items()
            if answer.at_ms < before_ms
        )[:limit]
        for command_id in map(itemgetter(1), old):
            del kept[command_id]
        return len(old)
