"""Callbacks of one transaction, as the worker thread makes them: which of them go together."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import ApplicationError
from broadsheet.consumer.shard.callbacks import Callbacks, InputPolicy, StampedPublisher
from broadsheet.consumer.shard.dead_letters import DeadLetters
from broadsheet.consumer.shard.supervision import MessagePosition
from broadsheet.consumer.shard.transaction_events import Finalize
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import UNREADABLE, MessageBatch
from broadsheet.journals.message.checkpoint import build_checkpoint
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard

Counts = dict[str, int]
OUTPUT = "out/a"
SOURCES = {"in/a": Checkpoint.Source(read_through=70)}


@dataclass
class Publishing:
    """Publishes so many messages at the end of each transaction."""

    messages: int = 0

    def finalize_txn(
        self, shard: Shard, store: JsonFileStore[Counts], publisher: Publisher
    ) -> None:
        """Publish."""
        del shard
        store.state["transactions"] = store.state.get("transactions", 0) + 1
        for number in range(self.messages):
            publisher.publish_uncommitted(
                MappedJournal(OUTPUT, NDJSON), {"number": number}, JsonType()
            )


@dataclass
class Watching(Publishing):
    """Is told of transactions, too."""

    told: list[object] = field(default_factory=list)

    def begin_txn(self, shard: Shard, store: JsonFileStore[Counts]) -> None:
        """Take note."""
        self.told.append("begin")

    def finished_txn(self, shard: Shard, store: JsonFileStore[Counts], commit: OpFuture) -> None:
        """Take note of the commit."""
        self.told.append(commit)


def _store(directory: Path) -> JsonFileStore[Counts]:
    return JsonFileStore(FixedShard(), directory, initial={}, state_type=dict[str, int])


def _stored(directory: Path) -> Checkpoint:
    return _store(directory).restore_checkpoint(FixedShard())


def _callbacks(
    application: Any,
    store: JsonFileStore[Counts],
    *,
    carried_bytes_max: int = 0,
    dead_letters: DeadLetters | None = None,
) -> Callbacks:
    """Return callbacks of an application, on a store that is restored."""
    store.restore_checkpoint(FixedShard())
    return Callbacks(
        FixedShard(),
        application,
        store,
        StampedPublisher(0x0100_0000_0001, SystemClock(), carried_bytes_max=carried_bytes_max),
        InputPolicy(dead_letters=dead_letters or DeadLetters()),
    )


def _order() -> Finalize:
    return Finalize(SOURCES, prior_acknowledgement={OUTPUT: b"before"})


def _checkpoint(ack_intents: dict[str, bytes]) -> Checkpoint:
    return build_checkpoint(SOURCES, ack_intents, _order().prior_acknowledgement)


def test_transaction_with_nothing_to_append_is_committed_at_once(tmp_path: Path) -> None:
    """Its checkpoint keeps the acknowledgement of before, as the machine's own would; and it is what stands there."""
    application, store = Watching(), _store(tmp_path)
    callbacks = _callbacks(application, store)
    callbacks.begin()

    finalized = callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: True)

    started = finalized.started
    assert started is not None
    started.commit.result(timeout=20)
    assert started.checkpoint == _checkpoint(finalized.ack_intents)
    assert started.checkpoint.ack_intents == {OUTPUT: b"before"}
    assert application.told == ["begin", started.commit]
    assert _stored(tmp_path) == started.checkpoint


def test_transaction_of_a_shard_that_was_stopped_meanwhile_is_not_committed(tmp_path: Path) -> None:
    """Its last callback may take long; nothing of it must stand when its successor starts."""
    callbacks = _callbacks(Publishing(), _store(tmp_path))
    callbacks.begin()

    finalized = callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: False)

    assert finalized.started is None
    assert _stored(tmp_path) == Checkpoint()


def test_transaction_whose_messages_go_first_is_not_committed_yet(tmp_path: Path) -> None:
    """The commit has to wait for appends that are not even queued: it is started when it is ordered."""
    application, store = Watching(messages=3), _store(tmp_path)
    callbacks = _callbacks(application, store)
    callbacks.begin()

    finalized = callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: True)

    assert finalized.started is None
    assert [append.journal for append in finalized.appends] == [OUTPUT]
    assert application.told == ["begin"]
    assert _stored(tmp_path) == Checkpoint()


def test_transaction_that_touches_a_journal_first_is_not_committed_yet(tmp_path: Path) -> None:
    """Later ones carry their messages, and are committed at once: theirs are in the checkpoint."""
    application, store = Publishing(messages=2), _store(tmp_path)
    callbacks = _callbacks(application, store, carried_bytes_max=1 << 20)
    callbacks.begin()
    first = callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: True)
    assert first.started is None
    callbacks.start_commit(_checkpoint(first.ack_intents), ()).result(timeout=20)

    callbacks.begin()
    second = callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: True)

    assert second.started is not None
    second.started.commit.result(timeout=20)
    assert second.appends == []
    assert second.started.checkpoint.ack_intents == second.ack_intents
    assert second.ack_intents[OUTPUT].count(b'"number"') == 2


@pytest.mark.parametrize(("application", "asks"), [(Publishing(), False), (Watching(), True)])
def test_only_who_is_told_of_a_beginning_has_code_to_run_then(
    tmp_path: Path, application: Any, asks: bool
) -> None:
    """What runs no code of the application needs no thread of its own."""
    assert _callbacks(application, _store(tmp_path)).asks_to_begin is asks


class _Failing(JsonFileStore[Counts]):
    """Cannot start a commit."""

    def start_commit(self, *_: object) -> OpFuture:
        """Fail."""
        raise OSError("no space left")


def test_store_that_cannot_start_a_commit_fails_the_transaction(tmp_path: Path) -> None:
    """The application hears of it as of any commit that failed, and the callback raises."""
    application = Watching()
    store = _Failing(FixedShard(), tmp_path, initial={}, state_type=dict[str, int])
    callbacks = _callbacks(application, store)
    callbacks.begin()

    with pytest.raises(ApplicationError, match="start_commit"):
        callbacks.finalize_and_commit(_order(), (), is_wanted=lambda: True)

    begin, commit = application.told
    assert begin == "begin"
    assert isinstance(commit, Future)
    assert isinstance(commit.exception(), ApplicationError)


def test_bytes_that_nothing_keeps_any_more_fail_the_attempt(tmp_path: Path) -> None:
    """The attempt began with a dead-letter journal, and the spec names none now: they must neither vanish nor reach
    the application.
    """
    letters = DeadLetters(keeps_unreadable=True)
    callbacks = _callbacks(Publishing(), _store(tmp_path), dead_letters=letters)
    callbacks.begin()
    batch = MessageBatch("in/a", [70], [75], [0], [0], [UNREADABLE], [b"junk"], JsonType())

    with pytest.raises(FramingError, match="not a JSON message"):
        callbacks.deliver(batch, first=True)

    assert callbacks.failed_at == MessagePosition("in/a", 70, 75, messages=1)
