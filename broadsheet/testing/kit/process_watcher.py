"""One process of a test's cluster: its steps are told, and it may be killed at any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Protocol

import structlog

from broadsheet.consumer.application import Application
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.testing.allocator.kernel.virtual_loop import Process
from broadsheet.testing.kit.steps import Step, StepTaken
from broadsheet.testing.kit.switchboard import CommitFault, Switchboard
from broadsheet.testing.kit.watched_application import KilledError, WatchedApplication
from broadsheet.wire.journal_pb2 import AppendResponse


class ProcessWorld(Protocol):
    """The part of its world that a process needs; called on any thread."""

    def require_journal(self, mapped: MappedJournal) -> None:
        """Make a journal if it is missing, and journals are made as they are needed."""
        ...

    def is_recovery_log(self, journal: str) -> bool:
        """Return whether a journal is one of the shards' logs."""
        ...

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> Callable[[], None]:
        """Note that a commit is under way; return what to call when it has ended."""
        ...

    def on_killed(self) -> None:
        """Note, on the loop, that processes were killed at a step."""
        ...


class ProcessWatcher:
    """Implements `Watcher` for one process."""

    def __init__(
        self,
        application: Application[Any],
        process: Process,
        *,
        switchboard: Switchboard,
        surroundings: ProcessWorld,
    ) -> None:
        """Watch a process that does not run yet. Make it on the loop.

        Args:
            application: The user's, of this process.
            process: Stopped where it is killed.
            switchboard: Asked at each step.
            surroundings: The world.
        """
        self.process = process
        self.application = WatchedApplication(application, self)
        """What the process runs."""
        self._switchboard = switchboard
        self._surroundings = surroundings
        self._loop = asyncio.get_running_loop()
        self._intents: set[bytes] = set()
        self._watched: set[JournalClient] = set()
        self._ends: list[Callable[[], None]] = []

    def on_step(self, step: Step, shard: str, detail: str = "") -> None:
        """Note a step."""
        if self.process.stopped:
            raise KilledError
        if self._switchboard.kills_at(StepTaken(step, shard, detail)):
            self.process.stop()
            # Outside of the process, which runs nothing any more.
            self._loop.call_soon_threadsafe(self._surroundings.on_killed, context=Context())
            raise KilledError

    def on_intents(self, shard: str, intents: dict[str, bytes]) -> None:
        """Note what will be acknowledgements."""
        del shard
        self._intents.update(intents.values())

    def watch_journals(self, journals: JournalClient) -> None:
        """Be told of each append of the process."""
        if journals in self._watched:
            return
        self._watched.add(journals)
        append = journals.append

        async def told(
            journal: str, content: bytes | list[bytes], **options: Any
        ) -> AppendResponse:
            response = await append(journal, content, **options)
            await self._on_appended(
                journal, b"".join(content) if isinstance(content, list) else content
            )
            return response

        vars(journals)["append"] = told

    async def _on_appended(self, journal: str, content: bytes) -> None:
        if not content or self._surroundings.is_recovery_log(journal):
            return
        step = Step.ACKNOWLEDGED if content in self._intents else Step.APPENDED
        # Each shard binds its name to its tasks.
        shard = str(structlog.contextvars.get_contextvars().get("shard", ""))
        try:
            self.on_step(step, shard, journal)
        except KilledError:
            # The answer has come, and the process does not live to see it.
            await asyncio.Event().wait()

    def require_journal(self, mapped: MappedJournal) -> None:
        """Make a journal if it is missing."""
        self._surroundings.require_journal(mapped)

    def commit_fault(self, shard: str) -> CommitFault:
        """Return the fault of the commit that starts now."""
        return self._switchboard.commit_fault(shard)

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> Callable[[], None]:
        """Note that a commit is under way."""
        ended = self._surroundings.begin_commit(shard, wait_for)
        self._ends.append(ended)
        return ended

    def close_files(self) -> list[Exception]:
        """Do what the system does when a process ends: close what its stores have open. Return what failed."""
        failures = []
        for store in self.application.stores:
            try:
                self.process.run(store.destroy)
            except Exception as error:  # a store of the user's
                failures.append(error)
        for end in self._ends:
            end()
        return failures
