"""When a failed shard is tried again, quarantined, or goes on without one message."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.consumer.errors import (
    ApplicationError,
    CommitFencedError,
    NoShardPrimaryError,
    NotShardPrimaryError,
    ShardNotFoundError,
    ShardStoppedError,
    StoreError,
    StoreUnavailableError,
    UnsupportedSpecError,
)
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.shard.replica_status import failed_status
from broadsheet.consumer.shard.supervision import (
    CUT,
    TEXT_LENGTH_MAX,
    TRACE_LENGTH_MAX,
    AttemptFailure,
    MessagePosition,
    RestartPolicy,
    Supervision,
    place_in_code,
    text_of,
    trace_of,
)
from broadsheet.journals.errors import JournalUnavailableError, ReplayError
from broadsheet.runtime.errors import ServiceError, ValidationError

POLICY = RestartPolicy(
    delay_seconds=1.0,
    delay_seconds_max=8.0,
    attempts_max=5,
    poison_attempts=3,
    quarantine_seconds=100.0,
)
ONE = MessagePosition("in/000", 10, 20)
MANY = MessagePosition("in/000", 10, 90, messages=8)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JournalUnavailableError("in/000"), FailureKind.TRANSIENT),
        (EtcdUnavailableError(("e:1",), "gone"), FailureKind.TRANSIENT),
        (CommitFencedError("/c/items/s", 1, 2), FailureKind.FENCED),
        (StoreUnavailableError("/c/items/s", "gone"), FailureKind.TRANSIENT),
        (StoreError("/c/items/s", "broken"), FailureKind.APPLICATION),
        (NoShardPrimaryError("other"), FailureKind.TRANSIENT),
        (NotShardPrimaryError("other"), FailureKind.TRANSIENT),
        (
            _caused(
                ApplicationError("s", "consume_message", OSError()), ShardStoppedError("other")
            ),
            FailureKind.TRANSIENT,
        ),
        (ShardNotFoundError("other"), FailureKind.APPLICATION),
        (ReplayError("in/000"), FailureKind.DATA_LOSS),
        (UnsupportedSpecError("sources", "expected one"), FailureKind.SPEC),
        (ValidationError("offset", "expected another"), FailureKind.APPLICATION),
        (ApplicationError("s", "consume_message", KeyError("k")), FailureKind.APPLICATION),
        (ServiceError("of no kind"), FailureKind.APPLICATION),
        (
            _caused(ApplicationError("s", "consume_message", OSError()), ConnectionResetError()),
            FailureKind.TRANSIENT,
        ),
        (
            ExceptionGroup("both", [ServiceError("first"), ReplayError("in/000")]),
            FailureKind.DATA_LOSS,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, FailureKind) else type(value).__name__,
)
def test_failure_kind_of_each_cause(error: Exception, kind: FailureKind) -> None:
    """The kind follows the type of the error or of what caused it: what helps depends on it."""
    assert failure_kind(error) is kind


def _wrapped(*, plainly: bool) -> ApplicationError:
    """Fail as libraries do that tell no cause: in the handler of what they met with."""
    try:
        try:
            raise ConnectionRefusedError("the service is down")
        except ConnectionRefusedError:
            if plainly:
                raise OSError("cannot fetch") from None
            raise OSError("cannot fetch")  # noqa: B904 - on purpose
    except OSError as error:
        failure = ApplicationError("s", "consume_message", error)
        failure.__cause__ = error
        return failure


def test_cause_that_is_not_named_counts_unless_it_is_hidden() -> None:
    """`urllib` and others raise their own error while they handle the one that matters."""
    assert failure_kind(_wrapped(plainly=False)) is FailureKind.TRANSIENT
    assert failure_kind(_wrapped(plainly=True)) is FailureKind.APPLICATION


class _DriverError(Exception):
    """As each database's driver names its own, by PEP 249."""


def _of_driver(module: str, name: str, **fields: str) -> Exception:
    kind = type(name, (_DriverError,), {"__module__": module, **fields})
    made: Exception = kind("deadlock detected")
    return _caused(ApplicationError("s", "consume_message", made), made)


def test_database_that_is_in_the_way_of_the_application_is_an_outage() -> None:
    """A deadlock, a lock that is held for long, a server that goes down in the middle: the message is not to blame.
    What SQLite calls by that name may as well be a statement that is wrong; it says more in its code.
    """
    assert failure_kind(_of_driver("psycopg", "OperationalError")) is FailureKind.TRANSIENT
    assert failure_kind(_of_driver("psycopg", "IntegrityError")) is FailureKind.APPLICATION
    busy = _of_driver("sqlite3", "OperationalError", sqlite_errorname="SQLITE_BUSY_SNAPSHOT")
    wrong = _of_driver("sqlite3", "OperationalError", sqlite_errorname="SQLITE_ERROR")
    assert failure_kind(busy) is FailureKind.TRANSIENT
    assert failure_kind(wrong) is FailureKind.APPLICATION
    assert failure_kind(_of_driver("sqlalchemy.exc", "OperationalError")) is FailureKind.APPLICATION


def test_trace_has_the_cause_and_is_bounded() -> None:
    """The log shows where the application raised, and not megabytes of it."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ApplicationError("s", "consume_message", inner) from inner
    except ApplicationError as error:
        trace = trace_of(error)
    long = trace_of(ServiceError("x" * 100_000))

    assert "test_trace_has_the_cause" in trace
    assert trace.index("KeyError: 'inner'") < trace.index("ApplicationError: consume_message")
    assert len(long) <= TRACE_LENGTH_MAX + len(CUT)


def test_causes_in_a_circle_end() -> None:
    """Two errors that name each other as cause are looked at once each."""
    first, second = ServiceError("first"), ServiceError("second")
    first.__cause__, second.__cause__ = second, first

    assert failure_kind(first) is FailureKind.APPLICATION


def test_transient_failures_are_tried_for_ever_ever_more_rarely() -> None:
    """An outage must not end a shard: delays double up to their bound, and there is no last one."""
    supervision = Supervision(POLICY)

    delays = [
        supervision.on_failure(AttemptFailure(FailureKind.TRANSIENT), jitter=1.0).delay_seconds
        for _ in range(50)
    ]

    assert delays[:5] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert delays[-1] == 8.0


def test_jitter_spreads_the_delay_over_its_upper_half() -> None:
    """Shards that failed together must not all come back together."""
    delays = [
        Supervision(POLICY)
        .on_failure(AttemptFailure(FailureKind.TRANSIENT), jitter=jitter)
        .delay_seconds
        for jitter in (0.0, 0.5)
    ]

    assert delays == [0.5, 0.75]


def test_application_failures_in_a_row_end_in_quarantine() -> None:
    """What fails every time is set aside with a long delay; the last verdict says so."""
    supervision = Supervision(POLICY)

    verdicts = [supervision.on_failure(AttemptFailure(FailureKind.APPLICATION)) for _ in range(5)]

    assert [verdict.quarantined for verdict in verdicts] == [False] * 4 + [True]
    assert verdicts[-1].delay_seconds == 100.0
    assert verdicts[-1].attempt == 5


def test_healthy_service_in_between_starts_the_count_anew() -> None:
    """A shard that fails once a day is no crash loop."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, healthy=True))
        for _ in range(20)
    ]

    assert not any(verdict.quarantined for verdict in verdicts)
    assert {verdict.attempt for verdict in verdicts} == {1}


def test_outage_does_not_count_towards_the_quarantine() -> None:
    """A broker was gone for an hour; the application's first failure after it is its first."""
    supervision = Supervision(POLICY)
    for _ in range(100):
        supervision.on_failure(AttemptFailure(FailureKind.TRANSIENT))

    verdicts = [supervision.on_failure(AttemptFailure(FailureKind.APPLICATION)) for _ in range(5)]

    assert [verdict.quarantined for verdict in verdicts] == [False] * 4 + [True]


def test_outage_does_not_forgive_what_the_application_did_before() -> None:
    """A crash loop goes on after a broker was gone for a moment."""
    supervision = Supervision(POLICY)
    for _ in range(4):
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION))

    supervision.on_failure(AttemptFailure(FailureKind.TRANSIENT))

    assert supervision.on_failure(AttemptFailure(FailureKind.APPLICATION)).quarantined


def test_failure_at_the_same_message_is_not_healthy_however_long_it_takes() -> None:
    """A message takes a minute to fail: each attempt serves for long, and none gets past it."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, place=ONE, healthy=True))
        for _ in range(5)
    ]

    assert [verdict.quarantined for verdict in verdicts] == [False] * 4 + [True]


def test_data_loss_is_quarantined_at_once() -> None:
    """Trying again could only build on what is lost."""
    verdict = Supervision(POLICY).on_failure(AttemptFailure(FailureKind.DATA_LOSS))

    assert verdict.quarantined


def test_spec_failure_waits_for_another_spec() -> None:
    """Time does not mend a spec."""
    verdict = Supervision(POLICY).on_failure(AttemptFailure(FailureKind.SPEC))

    assert verdict.delay_seconds is None
    assert not verdict.quarantined


def test_message_that_fails_again_and_again_is_poison_if_it_can_be_left_out() -> None:
    """After three failures at one message it is named, and the count starts again for the next."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, place=ONE), can_skip=True)
        for _ in range(3)
    ]

    assert [verdict.poison for verdict in verdicts] == [None, None, ONE]
    assert supervision.failures == 0


def test_failures_at_different_messages_are_not_poison() -> None:
    """An application that fails everywhere is broken itself: its messages are not to blame."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(
            AttemptFailure(
                FailureKind.APPLICATION, place=MessagePosition("in/000", offset, offset + 5)
            ),
            can_skip=True,
        )
        for offset in range(0, 25, 5)
    ]

    assert not any(verdict.poison for verdict in verdicts)
    assert verdicts[-1].quarantined


def test_poison_without_a_dead_letter_journal_is_quarantined() -> None:
    """Nothing is left out without being recorded."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, place=ONE)) for _ in range(5)
    ]

    assert not any(verdict.poison for verdict in verdicts)
    assert verdicts[-1].quarantined


def test_batch_that_fails_is_consumed_message_by_message_next() -> None:
    """Only then can it be told which of its messages is to blame; a batch as such is never left out."""
    supervision = Supervision(POLICY)

    verdicts = [
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, place=MANY), can_skip=True)
        for _ in range(4)
    ]

    assert {verdict.suspect for verdict in verdicts} == {MANY}
    assert not any(verdict.poison for verdict in verdicts)


def test_outage_in_between_does_not_count_against_a_message() -> None:
    """Failures at a message count while they are in a row."""
    supervision = Supervision(POLICY)
    for _ in range(2):
        supervision.on_failure(AttemptFailure(FailureKind.APPLICATION, place=ONE), can_skip=True)

    supervision.on_failure(AttemptFailure(FailureKind.TRANSIENT))

    verdict = supervision.on_failure(
        AttemptFailure(FailureKind.APPLICATION, place=ONE), can_skip=True
    )
    assert verdict.poison is None


def _raise_from_the_library() -> None:
    json.loads("{")


def test_place_is_the_last_line_of_the_users_own_code() -> None:
    """Frames of the framework and of the standard library tell nothing to somebody whose code called them wrongly."""
    with pytest.raises(ValueError, match="Expecting") as raised:
        _raise_from_the_library()
    failure = _caused(ApplicationError("s", "consume_message", raised.value), raised.value)

    line = _raise_from_the_library.__code__.co_firstlineno + 1
    assert place_in_code(failure) == f"raised at {__file__}:{line} in _raise_from_the_library"


def test_application_installed_as_a_package_is_found_by_its_callback(tmp_path: Path) -> None:
    """A wheel's code is beside that of other packages: the first frame of the callback is the user's all the same."""
    file = tmp_path / "site-packages" / "wheel_app.py"
    file.parent.mkdir()
    file.write_text("def consume():\n    helper()\n\ndef helper():\n    raise KeyError('k')\n")
    spec = spec_from_file_location("wheel_app", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(KeyError) as raised:
        module.consume()
    raised.value.__traceback__ = raised.tb.tb_next  # without this test's own frame
    failure = _caused(ApplicationError("s", "consume_message", raised.value), raised.value)

    assert place_in_code(failure) == f"raised at {file}:2 in consume"
    assert not place_in_code(_caused(ServiceError("of ours"), raised.value))


def test_error_without_a_frame_of_the_user_has_no_place() -> None:
    """An error that was never raised, or only in the framework, must not name somebody's file."""
    assert not place_in_code(ServiceError("never raised"))


class UnspeakableError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise KeyError("no message")


def test_text_of_a_failure_is_one_that_a_status_can_hold() -> None:
    """An application's exception may be long, hold text that is no UTF-8, or say nothing at all. A failure that cannot
    be told of must not end the loop that restarts the shard.
    """
    long, odd, silent = map(
        text_of, (ValueError("x" * 18_000), ValueError("a\ud800"), UnspeakableError())
    )

    assert len(long) < TEXT_LENGTH_MAX + 20
    assert long.endswith("...[truncated]")
    assert odd == r"a\ud800"
    assert silent == "UnspeakableError"
    failed_status([long, odd, silent, "place in /\udcff.py"])


def test_data_loss_that_a_standby_found_is_tried_again_ever_more_rarely() -> None:
    """A standby may read a copy that lags: only a primary's finding sets the shard aside. Each look plays a log,
    so that the looks grow rare; a promotion forgets them.
    """
    supervision = Supervision(POLICY)
    failure = AttemptFailure(FailureKind.DATA_LOSS, stood_by=True)

    found = [supervision.on_failure(failure) for _ in range(5)]
    supervision.on_promoted()
    served = supervision.on_failure(AttemptFailure(FailureKind.DATA_LOSS))

    assert [each.delay_seconds for each in found] == [8.0, 16.0, 32.0, 64.0, 100.0]
    assert not any(each.quarantined for each in found)
    assert (served.attempt, served.quarantined, served.delay_seconds) == (1, True, 100.0)
