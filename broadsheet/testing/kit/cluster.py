"""A cluster of one's own application, for its tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import indent
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from broadsheet.consumer.application import Application
from broadsheet.consumer.commands.commands import Commands
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.resolver.resolver import ShardResolution
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.transaction_events import Activity
from broadsheet.journals.message.batch import MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.logs import guard_unconfigured_logs
from broadsheet.runtime.process_directory import ProcessDirectory
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.run import logs_to
from broadsheet.testing.kit.cluster_thread import ClusterThread
from broadsheet.testing.kit.errors import ShardFailedError, StuckError
from broadsheet.testing.kit.lockstep import Gate
from broadsheet.testing.kit.messages import TestProducer, as_published, committed
from broadsheet.testing.kit.states import merged, state_of
from broadsheet.testing.kit.steps import Step, StepTaken
from broadsheet.testing.kit.switchboard import ArmedCommit, ArmedKill, Switchboard
from broadsheet.testing.kit.topology import (
    Journals,
    Shards,
    journal_specs,
    new_journal,
    new_shard,
    recovery_logs,
    shard_specs,
)
from broadsheet.testing.kit.world import World
from broadsheet.wire.alphabet import validate_journal
from broadsheet.wire.journal_pb2 import Header, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, value_of
from broadsheet.wire.shard_pb2 import ShardSpec, Status

T = TypeVar("T")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

STATE_DIRECTORY_VARIABLE: Final = "BROADSHEET_STATE_DIR"
"""Names the cluster's own directory while it lives, as `shardctl dev` does for applications that keep files."""
READ_SECONDS_MAX: Final = 120.0
LOOK_SECONDS_MAX: Final = 0.1
LOOK_FACTOR: Final = 1.2
_PASSING: Final = frozenset({FailureKind.TRANSIENT, FailureKind.FENCED, FailureKind.HELD_BACK})
"""Failures that end by themselves, such as those that a test asks for."""

# `Any`: the store's type is the application's own.
NewApplication = Callable[[], Application[Any]]


class TestCluster:
    """An in-process cluster of an application: publish, read through, look at its state, and let things fail.

        with TestCluster(Counter) as cluster:
            cluster.publish("events", {"key": "a"}, {"key": "b"}, {"key": "a"})
            cluster.read_through()
            assert cluster.state() == {"a": 2, "b": 1}

    The shards are real, and so are the application and its stores, on threads of their own. Etcd, broker and network
    are in memory, on virtual time: a test takes milliseconds, whatever the application's shards wait for. All methods
    are plain functions, which may also be called in an `async def` test; between two calls the cluster stands still.
    """

    __test__ = False  # It is no test, though its name begins like one.

    def __init__(
        self,
        application: NewApplication | str,
        *,
        shards: Shards = None,
        journals: Journals = None,
        standbys: int = 0,
        state: Callable[[Any], Any] | None = None,
        real: bool = False,
    ) -> None:
        """Describe the cluster; it starts when it is first used.

        Args:
            application: The application's class, or a function that makes it, or `package.module:attribute`. Each
                member makes one of its own, as separate processes do.
            shards: Specs of shards: a YAML file as `shardctl shards apply` takes it, `{"shard": ["journal", …]}`, or
                specs. None: one shard for each journal that the test publishes to, named like it, with a recovery log.
            journals: Specs of journals: a YAML file as `shardctl journals apply` takes it, or specs; a journal that is
                not among them does not exist. None: journals are made as they are needed.
            standbys: Hot standbys of each shard that is not given by a spec.
            state: Returns the state of a store for `state()`; needed for stores that are not ours.
            real: Use an embedded etcd and broker, real members, and real time. Needs `broadsheet[embedded]`.

        Raises:
            ValidationError: an argument is wrong; the message names it.
        """
        self._new_application = _factory(application)
        self._shards = shard_specs(shards, standbys=standbys)
        self._journals = journal_specs(journals)
        self._standbys = standbys
        self._state = state
        self._real = real
        self._own: Application[Any] | None = None
        self._thread: ClusterThread | None = None
        self._world: World
        self._producer: TestProducer
        self._directory: ProcessDirectory | None = None
        self._variable_before: str | None = None
        self._known: dict[str, JournalSpec] = {}
        self._switchboard = Switchboard()
        self._left: list[str] = []
        """Faults that had not happened when the cluster was closed."""

    # -- messages

    def publish(self, journal: str, *messages: Any) -> None:
        """Publish messages to a journal, at once and in this order.

        Args:
            journal: Made if it is missing, unless the cluster was given journals; read by a shard of its name, unless
                the cluster was given shards.
            messages: Mappings, `msgspec.Struct`s, or what the application's message type of this journal takes. They
                are copied.

        Raises:
            ValidationError: a message is not of the journal's type, or there is no such journal.
        """
        self._call(partial(self._publish, journal, messages))

    def read_through(self, *, seconds_max: float = READ_SECONDS_MAX) -> None:
        """Wait until every shard has read, committed and acknowledged everything that its sources hold.

        That includes what shards publish to each other: afterwards nothing is under way.

        Args:
            seconds_max: Longest wait, of the cluster's time.

        Raises:
            ShardFailedError: the application, its store or its spec failed a shard; `__cause__` has the error.
            StuckError: the time is up; the message tells what each shard waits for.
        """
        self._call(partial(self._read_through, seconds_max))

    def published(self, journal: str, *, message_type: MessageType | None = None) -> list[Any]:
        """Return the messages of a journal that its readers see: committed, each once, without acknowledgements.

        Args:
            journal: A name, or a prefix that ends in `/`: then all journals below it, in the order of their names.
            message_type: Decodes the messages; None: as the content type says, so that JSON messages are dicts without
                `_meta`.

        Raises:
            ValidationError: the content type alone does not say how to decode them.
        """
        return self._call(partial(self._published, journal, message_type))

    # -- state

    def state(self, key: Any = None, *, shard: str = "") -> Any:
        """Return the state of the shards' stores, as of their last commits.

        A `JsonFileStore` shows its state. Other stores of ours show their tables, each as a dict by its first column.
        For a store of your own pass `state=` to the cluster, or use `query`.

        Args:
            key: Return its entry only; None if there is none.
            shard: Of one shard; empty: of all, merged if their states are dicts.

        Raises:
            ValidationError: the state cannot be shown or merged; the message says what to do.
        """
        found = self._call(partial(self._whole_state, shard))
        return found if key is None else found.get(key)

    def states(self) -> dict[str, Any]:
        """Return the state of each shard's store, as of its last commit, by shard.

        Raises:
            ValidationError: as of `state`.
        """
        return self._call(self._states)

    def journals(self) -> list[str]:
        """Return the names of all journals of messages, in their order."""
        return self._call(self._journal_names)

    def query(self, function: Callable[[Any], T], *, shard: str = "") -> T:
        """Return `function(store)`, run between two batches on the thread of the shard, as queries are.

        Args:
            function: Of the application's own store.
            shard: May be left out if there is one.

        Raises:
            ValidationError: several shards might be meant.
        """
        return self._call(partial(self._query, shard, function))

    def command(
        self,
        commands: Commands[RequestT, ResponseT],
        request: RequestT,
        *,
        command_id: str = "",
        shard: str = "",
    ) -> ResponseT:
        """Have a shard execute a command as a caller does, who repeats it by its id while its primary goes away.

        Args:
            commands: The application's; of any of its objects.
            request: The request.
            command_id: Empty: a random one.
            shard: May be left out if there is one.

        Raises:
            CommandRefusedError: the application refused it.
            ShardFailedError: the application failed the shard.
            StuckError: the shard has no ready primary.
        """
        return self._call(
            partial(self._command, commands, request, command_id or uuid4().hex, shard)
        )

    # -- faults

    def kill_primary(
        self, shard: str = "", *, after: Step | None = None, journal: str = "", times: int = 1
    ) -> None:
        """Kill the process of a shard's primary, as `kill -9` does; another process takes its shards.

        Args:
            shard: May be left out if there is one.
            after: The step after which it is killed, when it is next taken; None: now.
            journal: For `APPENDED` and `ACKNOWLEDGED`: to which journal; empty: any.
            times: How often the step must be taken.
        """
        if after is None:
            self._call(partial(self._kill_now, shard))
        else:
            self._switchboard.arm_kill(ArmedKill(after, shard, journal, times))

    def fail_commit(self, shard: str = "", *, times: int = 1) -> None:
        """Let a commit fail before the store has written anything: the next one, or the n-th from now on."""
        self._switchboard.arm_commit(ArmedCommit("fail", shard, times))

    def lose_answer(self, shard: str = "", *, times: int = 1) -> None:
        """Let a commit become durable while the primary is told that it failed: its outcome is unknown to it."""
        self._switchboard.arm_commit(ArmedCommit("lose answer", shard, times))

    def hand_over(self, shard: str = "") -> None:
        """Move a shard to another process while its primary runs: to its standby, if it has one."""
        self._call(partial(self._hand_over, shard))

    @property
    def steps(self) -> list[StepTaken]:
        """The steps that shards have taken so far."""
        return self._switchboard.taken()

    # -- life

    def close(self) -> None:
        """End the cluster. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        # A fault that is still asked for must not befall the end.
        self._left = self._switchboard.disarm()
        try:
            # Killed processes are cancelled like all others, and would tell of their failures now.
            with logs_to(None):
                try:
                    # There is none if it could not even be made.
                    if hasattr(self, "_world"):
                        thread.call(self._world.stop, closes=True)
                finally:
                    thread.close()
        finally:
            self._restore_environment()

    def __enter__(self) -> Self:
        return self

    def check_faults(self) -> None:
        """Fail if a fault that was asked for has not happened: the test did not try what it says. At its end.

        Raises:
            AssertionError: one has not; the message has the last steps.
        """
        left = self._left or self._switchboard.armed()
        if left:
            steps = ", ".join(map(str, self.steps[-10:])) or "none"
            raise AssertionError(
                f"asked for, and did not happen: {', '.join(left)}; last steps: {steps}"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.check_faults()

    # -- on the cluster's loop

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        if self._thread is None:
            self._start()
        assert self._thread is not None, "just started"
        return self._thread.call(function)

    def _start(self) -> None:
        self._directory = ProcessDirectory("broadsheet-test-")
        self._variable_before = os.environ.get(STATE_DIRECTORY_VARIABLE)
        states = self._directory.path / "state"
        states.mkdir()
        os.environ[STATE_DIRECTORY_VARIABLE] = str(states)
        gate = None if self._real else Gate()
        guard_unconfigured_logs()
        self._thread = ClusterThread(gate)
        try:
            self._thread.call(partial(self._begin, self._thread, gate))
        except BaseException:
            self.close()
            raise

    def _restore_environment(self) -> None:
        if self._variable_before is None:
            os.environ.pop(STATE_DIRECTORY_VARIABLE, None)
        else:
            os.environ[STATE_DIRECTORY_VARIABLE] = self._variable_before
        if self._directory is not None:
            self._directory.close()

    async def _begin(self, thread: ClusterThread, gate: Gate | None) -> None:
        assert self._directory is not None, "made before"
        makes_journals = self._journals is None
        if gate is None:
            # Imported here, because servers take long to import, and most tests have none.
            from broadsheet.testing.kit.real_world import RealWorld

            self._world = RealWorld(
                self._new_application,
                self._switchboard,
                group=thread.group,
                directory=self._directory.path / "servers",
                makes_journals=makes_journals,
            )
        else:
            from broadsheet.testing.kit.virtual_world import VirtualWorld

            self._world = VirtualWorld(
                self._new_application,
                self._switchboard,
                gate,
                group=thread.group,
                directory=self._directory.path / "members",
                makes_journals=makes_journals,
            )
        await self._world.start()
        self._producer = TestProducer(self._world.journals)
        await self._create_journals(self._journals or [])
        if self._shards is not None:
            await self._apply_shards(self._shards)

    async def _apply_shards(self, specs: Sequence[ShardSpec]) -> None:
        logs = [spec for spec in recovery_logs(specs) if spec.name not in self._known]
        await self._create_journals(logs)
        if self._journals is None:
            sources = {source.journal for spec in specs for source in spec.sources}
            missing = [self._new_journal(name) for name in sorted(sources - self._known.keys())]
            await self._create_journals(missing)
        await self._world.apply_shards(specs)

    async def _create_journals(self, specs: Sequence[JournalSpec]) -> None:
        await self._world.create_journals(specs)
        self._known.update((spec.name, spec) for spec in specs)

    def _new_journal(self, name: str) -> JournalSpec:
        """Return the spec of a source, with the content type of what the application reads there."""
        spec = new_journal(name)
        return new_journal(name, self._type_of(spec).content_type)

    def _type_of(self, spec: JournalSpec) -> MessageType:
        if self._own is None:
            self._own = self._new_application()
        return self._own.message_type(spec)

    async def _publish(self, journal: str, messages: Sequence[Any]) -> None:
        await self._require_source(journal)
        spec = self._known[journal]
        message_type = self._type_of(spec)
        ready = [
            as_published(message, message_type, field=f"messages[{index}]")
            for index, message in enumerate(messages)
        ]
        await self._producer.publish(
            MappedJournal(journal, value_of(spec.labels, CONTENT_TYPE)),
            ready,
            message_type,
            wall_seconds=self._world.wall_seconds,
        )

    async def _require_source(self, journal: str) -> None:
        validate_journal(journal)
        if journal not in self._known:
            if self._journals is not None:
                known = ", ".join(sorted(self._known)) or "none"
                raise ValidationError("journal", f"expected one of {known}; got {journal!r}")
            await self._create_journals([self._new_journal(journal)])
        if self._shards is None and journal not in self._world.shards():
            await self._apply_shards([new_shard(journal, [journal], standbys=self._standbys)])

    async def _published(self, journal: str, message_type: MessageType | None) -> list[Any]:
        listed = await self._world.journals.list()
        specs = {each.spec.name: each.spec for each in listed.journals}
        if journal.endswith("/"):
            chosen = [
                spec
                for name, spec in sorted(specs.items())
                if name.startswith(journal) and not _is_log(spec)
            ]
        else:
            chosen = [specs[journal]] if journal in specs else []
        found: list[Any] = []
        for spec in chosen:
            found += await committed(self._world.journals, spec, message_type)
        return found

    async def _read_through(self, seconds_max: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_max
        looks = _looks(self._world.look_seconds)
        while True:
            await self._world.settle_deaths()
            behind = await self._behind()
            if not behind:
                return
            if loop.time() > until:
                told = "\n  ".join(behind)
                raise StuckError(f"not read through after {seconds_max:.0f} s:\n  {told}")
            await asyncio.sleep(next(looks))

    async def _behind(self) -> list[str]:
        """Return what each shard still has to do, as text.

        Raises:
            ShardFailedError: it failed for good.
        """
        heads = await self._world.heads()
        found = []
        for shard, spec in self._world.shards().items():
            if not spec.disable:
                told = self._behind_of(self._world.primary_of(shard), spec, heads)
                if told:
                    found.append(f"shard {shard!r} {told}")
        return found

    def _behind_of(self, live: LiveShard | None, spec: ShardSpec, heads: Mapping[str, int]) -> str:
        if live is None:
            return "has no primary"
        if live.terminal.done():
            cause = live.terminal.result()
            if cause is not None and not _is_passing(cause):
                raise ShardFailedError(spec.id, cause) from cause
            return f"waits for its restart after: {cause}"
        if not live.is_ready:
            return f"restores its store{_where(live)}"
        read, _ = live.progress()
        for source in spec.sources:
            head, offset = heads.get(source.journal, 0), read.get(source.journal, 0)
            if offset < head:
                return (
                    f"has read {source.journal!r} through {offset} of {head} bytes, and is "
                    f"{live.activity.value}{_where(live)}"
                )
        if live.activity is not Activity.READING:
            return f"has a transaction under way, and is {live.activity.value}{_where(live)}"
        if live.is_due:
            # What follows from the input by time alone, such as a window that its rows closed, belongs to the round.
            return f"has a transaction due that needs no input{_where(live)}"
        return ""

    async def _whole_state(self, shard: str) -> Any:
        if shard:
            return await self._query(shard, self._state or state_of)
        return merged(await self._states())

    async def _states(self) -> dict[str, Any]:
        show = self._state or state_of
        return {
            shard: await self._query(shard, show)
            for shard, spec in self._world.shards().items()
            if not spec.disable
        }

    async def _journal_names(self) -> list[str]:
        listed = await self._world.journals.list()
        return sorted(each.spec.name for each in listed.journals if not _is_log(each.spec))

    async def _query(self, shard: str, function: Callable[[Any], T]) -> T:
        live = await self._ready_primary(self._one_shard(shard))
        with live.acquire() as reference:
            await reference.wait_ready()
            return await reference.call(function)

    async def _command(
        self,
        commands: Commands[RequestT, ResponseT],
        request: RequestT,
        command_id: str,
        shard: str,
    ) -> ResponseT:
        while True:
            live = await self._ready_primary(self._one_shard(shard))
            try:
                held = (live, live.acquire())
                async with (
                    ShardResolution(Status.OK, Header(), live.spec, held=held) as resolution,
                    TaskGroup() as group,
                ):
                    execution = group.start_soon(
                        commands.execute(resolution, request, command_id=command_id),
                        name=f"command {command_id}",
                    )
                    if not await self._is_done_at(live, execution):
                        execution.cancel()
                if not execution.cancelled():
                    return execution.result()
            except ShardStoppedError:
                pass  # Asked again at its next primary, by the same id.

    async def _is_done_at(self, live: LiveShard, execution: asyncio.Task[Any]) -> bool:
        """Wait for an execution; False if the shard has another primary first."""
        looks = _looks(self._world.look_seconds)
        while not execution.done():
            await asyncio.wait((execution,), timeout=next(looks))
            await self._world.settle_deaths()
            if not execution.done() and self._world.primary_of(live.id) is not live:
                return False
        return True

    async def _ready_primary(self, shard: str) -> LiveShard:
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_SECONDS_MAX
        looks = _looks(self._world.look_seconds)
        while True:
            await self._world.settle_deaths()
            live = self._world.primary_of(shard)
            if live is not None and live.is_ready:
                return live
            if live is not None:
                self._behind_of(live, self._world.shards()[shard], {})
            if loop.time() > until:
                raise StuckError(f"shard {shard!r} has no ready primary")
            await asyncio.sleep(next(looks))

    async def _kill_now(self, shard: str) -> None:
        await self._world.kill_primary(self._one_shard(shard))

    async def _hand_over(self, shard: str) -> None:
        await self._world.hand_over(self._one_shard(shard))

    def _one_shard(self, shard: str) -> str:
        known = self._world.shards()
        if not shard and len(known) == 1:
            return next(iter(known))
        if shard not in known:
            names = ", ".join(known) or "none: nothing was published yet"
            raise ValidationError("shard", f"expected one of {names}; got {shard!r}")
        return shard


def _looks(first_seconds: float) -> Iterator[float]:
    """Yield the pauses between looks: short at first, longer where something takes its time."""
    seconds = first_seconds
    while True:
        yield seconds
        seconds = min(seconds * LOOK_FACTOR, LOOK_SECONDS_MAX)


def _where(live: LiveShard) -> str:
    """Return where a shard's thread is, and what its machines did last."""
    parts = [f"its thread is at:\n{live.stack()}" if live.stack() else "", live.story()]
    told = "\n".join(filter(None, parts))
    return f"\n{indent(told, '    ')}" if told else ""


def _is_log(spec: JournalSpec) -> bool:
    return value_of(spec.labels, CONTENT_TYPE) == CONTENT_TYPE_RECOVERY_LOG


def _is_passing(cause: BaseException) -> bool:
    return failure_kind(cause) in _PASSING


def _factory(application: NewApplication | str) -> NewApplication:
    if isinstance(application, str):
        from broadsheet.cli.application_name import load_attribute

        application = load_attribute(application, option="application")
    if not callable(application):
        raise ValidationError(
            "application",
            f"expected the application's class, or a function that makes it, got {application!r}: each member makes "
            "its own, as separate processes do",
        )
    return application
