"""Restart decisions after an attempt to serve a shard has failed.

    transient                       ─► again, after a delay that doubles with each failure in a row
    application, at one message     ─► again; if that message fails `poison_attempts` times, and there is a dead-letter
                                       journal, without it: it is recorded there in the same transaction
    application, at a whole batch   ─► again, but that batch message by message, to find the one
    too many in a row, data loss    ─► quarantine: tried again after `quarantine_seconds` only
    data loss, as a standby         ─► again, each time after twice as long: a standby only reads, and what it reads may
                                       lag, so that its finding is its own and not the shard's
    promoted while it waits         ─► at once, and the standby's failures do not count
    journal replaced                ─► again, as rarely as any: what was read may be restored, or a reset asked for
    held back                       ─► quarantine, until the hold is over
    spec                            ─► not before the spec changes

Pure: times and chance come in as values.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType, FrameType

from broadsheet.consumer.errors import ApplicationError
from broadsheet.consumer.registry.failure_kind import RAISED_AT, FailureKind, causes_of
from broadsheet.journals.errors import FramingError
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL

_EXPONENT_MAX = 32
"""So that an endless row of failures overflows no float."""
QUARANTINE_SECONDS = 900.0
"""Of a shard that must be looked at, unless configured otherwise."""


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """Messages of one journal that were being consumed: [begin, end) in bytes."""

    journal: str
    begin: int
    end: int
    messages: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Limits and delays for restarts of a failed shard."""

    delay_seconds: float = 0.5
    """Upper bound of the delay after the first failure; it doubles with each further one."""
    delay_seconds_max: float = 30.0
    attempts_max: int = 12
    """Failures of the application in a row after which the shard is quarantined; 0: never. Outages in between neither
    count nor forgive."""
    poison_attempts: int = 3
    """Failures in a row at one message after which it counts as poison."""
    quarantine_seconds: float = QUARANTINE_SECONDS
    """A quarantined shard is tried again after this; 0: only once its spec changes or it is assigned again. A standby's
    findings of data loss wait for so long at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """The next step after a failure."""

    attempt: int
    """How many attempts in a row have failed now."""
    kind: FailureKind
    delay_seconds: float | None
    """When to try again; None: only once the spec changes."""
    quarantined: bool = False
    poison: MessagePosition | None = None
    """The message to leave out from now on."""
    suspect: MessagePosition | None = None
    """Messages to consume one by one from now on, to find the one that fails."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """The end of an attempt to serve."""

    kind: FailureKind
    """Of its cause."""
    place: MessagePosition | None = None
    """What the application was consuming, if it was."""
    healthy: bool = False
    """It had served long enough that what failed before no longer counts."""
    held_seconds: float = 0.0
    """How long the shard is held back, if it is."""
    stood_by: bool = False
    """It was a standby, which neither serves nor writes."""


class Supervision:
    """Remembers one shard's failures, and decides on restarts."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._application_failures = 0
        self._place: MessagePosition | None = None
        self._place_failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def on_failure(
        self, failure: AttemptFailure, *, can_skip: bool = False, jitter: float = 0.5
    ) -> RestartDecision:
        """Record a failure and return the decision.

        After a failure at the same message as before, the shard was not healthy in between, however long the attempt
        served: its commits end before that message.

        Args:
            failure: How the attempt ended.
            can_skip: There is a dead-letter journal.
            jitter: Evenly drawn from [0, 1).
        """
        kind, place = failure.kind, failure.place
        if failure.healthy and (place is None or place != self._place):
            self._failures = self._application_failures = 0
        self._failures += 1
        self._note(kind, place)
        if kind is FailureKind.SPEC:
            return self._verdict(kind, None)
        if kind is FailureKind.HELD_BACK:
            self._failures -= 1  # The message was not even attempted.
            return RestartDecision(
                attempt=self._failures,
                kind=kind,
                delay_seconds=failure.held_seconds,
                quarantined=True,
            )
        if kind is FailureKind.DATA_LOSS:
            return (
                self._verdict(kind, self._standby_delay())
                if failure.stood_by
                else self._quarantine(kind)
            )
        if kind is FailureKind.REPLACED:
            return self._verdict(kind, self._policy.delay_seconds_max)
        if kind is FailureKind.APPLICATION:
            self._application_failures += 1
            if can_skip and self._is_poison():
                return self._skip(kind, jitter)
            if 0 < self._policy.attempts_max <= self._application_failures:
                return self._quarantine(kind)
        return self._verdict(kind, self._delay(jitter), suspect=self._suspect())

    def on_promoted(self) -> None:
        """Forget the failures of the standby, because the primary has other duties and deserves its own tries."""
        self._failures = self._application_failures = 0
        self._note(FailureKind.TRANSIENT, None)

    def _note(self, kind: FailureKind, place: MessagePosition | None) -> None:
        if kind is not FailureKind.APPLICATION or place is None:
            self._place, self._place_failures = None, 0
        elif self._place is not None and place == self._place:
            self._place_failures += 1
        else:
            self._place, self._place_failures = place, 1

    def _is_poison(self) -> bool:
        return (
            self._place is not None
            and self._place.messages == 1
            and self._place_failures >= self._policy.poison_attempts
        )

    def _suspect(self) -> MessagePosition | None:
        return self._place if self._place is not None and self._place.messages > 1 else None

    def _skip(self, kind: FailureKind, jitter: float) -> RestartDecision:
        """Skip the message and reset the count, because the next message may be as bad and deserves its own tries."""
        poison, attempt = self._place, self._failures
        self._failures = self._application_failures = self._place_failures = 0
        self._place = None
        return RestartDecision(
            attempt=attempt, kind=kind, delay_seconds=self._delay(jitter), poison=poison
        )

    def _quarantine(self, kind: FailureKind) -> RestartDecision:
        return RestartDecision(
            attempt=self._failures,
            kind=kind,
            delay_seconds=self._policy.quarantine_seconds or None,
            quarantined=True,
        )

    def _verdict(
        self,
        kind: FailureKind,
        delay_seconds: float | None,
        *,
        suspect: MessagePosition | None = None,
    ) -> RestartDecision:
        return RestartDecision(
            attempt=self._failures, kind=kind, delay_seconds=delay_seconds, suspect=suspect
        )

    def _standby_delay(self) -> float:
        """Return a delay that begins where others end: each further attempt may play a whole log for nothing."""
        longest = self._policy.quarantine_seconds or QUARANTINE_SECONDS
        exponent = min(max(self._failures - 1, 0), _EXPONENT_MAX)
        return min(longest, self._policy.delay_seconds_max * 2.0**exponent)

    def _delay(self, jitter: float) -> float:
        """Return a delay in [bound / 2, bound)."""
        exponent = min(max(self._failures - 1, 0), _EXPONENT_MAX)
        bound = min(self._policy.delay_seconds_max, self._policy.delay_seconds * 2.0**exponent)
        return bound / 2 * (1 + jitter)


# Errors as text, with the place where they were raised, for statuses and the log.

TRACE_LENGTH_MAX = 16_384
"""Code points. The end is kept: it has the innermost call of what was raised last, and its message."""
CUT = "[...]\n"


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without local variables.

    It is text, not the error itself, because rendering an error for a terminal reads sources and shows the values of
    every frame, which takes seconds on the loop that renews the lease.
    """
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= TRACE_LENGTH_MAX else CUT + text[-TRACE_LENGTH_MAX:]


TEXT_LENGTH_MAX = 2048
"""Code points of a failure's text: it goes into statuses, answers and their headers."""


def text_of(cause: BaseException) -> str:
    """Return the message of a failure and its notes, of bounded length, in what UTF-8 can encode."""
    try:
        message = str(cause)
    except Exception:  # the application's own class
        message = ""
    notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
    text = f"{message or type(cause).__name__}{notes}".encode(errors="backslashreplace").decode()
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + " ...[truncated]"


_OURS = "broadsheet."
_EXAMPLES = "broadsheet.examples."
"""Applications, which users copy: theirs, for a message that says where to look."""
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")


def place_in_code(error: BaseException) -> str:
    """Return the file and line of the user's code that raised, or that called what did; empty if there is none.

    Frames of this framework, of the standard library and of other packages are passed over, because the user changes
    none of them. An application that is installed as a package is found as the callback that the framework called.
    """
    for each in causes_of(error):
        frames = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(each.__traceback__)
            if not _is_framework(frame)
        ]
        own = [frame for frame in frames if not _is_installed(frame[0])]
        called = frames[:1] if isinstance(error, ApplicationError) else []
        if chosen := own[-1:] or called:
            code, line = chosen[0]
            return f"{RAISED_AT}{code.co_filename}:{line} in {code.co_name}"
    return ""


def _is_framework(frame: FrameType) -> bool:
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    in_library = code.co_filename.startswith(_STANDARD_LIBRARY) and not _is_installed(code)
    ours = module.startswith(_OURS) and not module.startswith(_EXAMPLES)
    return ours or code.co_filename.startswith("<") or in_library


def _is_installed(code: CodeType) -> bool:
    return any(folder in code.co_filename for folder in _INSTALLED)


def way_past(cause: BaseException, *, sources: Collection[str], can_skip: bool) -> str:
    """Return the way for an operator to get a shard past unreadable bytes; nothing if they are not the cause.

    Args:
        cause: Why the shard failed.
        sources: Its journals; what is wrong in others is nothing to pass by.
        can_skip: It has a dead-letter journal, so no operator has to act.
    """
    if can_skip or not isinstance(cause, FramingError) or cause.journal not in sources:
        return ""
    beyond = str(cause.end) if cause.end is not None else f"an offset behind {cause.offset}"
    return (
        f"; to go on without it, name a journal by the label {DEAD_LETTER_JOURNAL}, which keeps what is left out, "
        f"or set min_offset of source {cause.journal} to {beyond}, which skips all that is not committed below it"
    )
