"""Logs: they never raise into the work, never hold it up, stay bounded, and say what they lost."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from broadsheet.runtime import log_output
from broadsheet.runtime.log_output import LOSSES, LineWriter, Loss, Losses
from broadsheet.runtime.logs import (
    EVENT_BURST,
    EVENT_NAMES_MAX,
    EVENTS_PER_SECOND,
    TEXT_CHARACTERS_MAX,
    EventRates,
    guard_unconfigured_logs,
    log_to_stderr,
)
from tests.support.eventually import DEADLINE_SECONDS, eventually_sync
from tests.support.stepping_clock import SteppingClock


@pytest.fixture
def losses() -> Losses:
    """Counts of one test."""
    return Losses()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page, which soon is full."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    yield reader, writer
    for each in (reader, writer):
        try:
            os.close(each)
        except OSError:
            continue  # the test closed it


def test_lines_whose_reader_has_ended_are_lost_and_counted(
    pipe: tuple[int, int], losses: Losses
) -> None:
    """`| tee` is killed, or journald restarts: a BrokenPipeError must not reach the call that only logged."""
    reader, descriptor = pipe
    writer = LineWriter(descriptor, losses)
    os.close(reader)

    for number in range(3):
        writer.write(b"line %d\n" % number)

    assert writer.flush()
    assert losses.count(Loss.NOT_WRITTEN) == 3


def test_lines_that_are_not_read_hold_up_no_writer(
    pipe: tuple[int, int], losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that is not read fills up: `write` returns all the same, memory stays bounded, and the rest is counted."""
    reader, descriptor = pipe
    monkeypatch.setattr(log_output, "PENDING_BYTES_MAX", 50_000)
    writer = LineWriter(descriptor, losses)
    line = b"x" * 999 + b"\n"

    began = time.monotonic()
    for _ in range(1_000):
        writer.write(line)
    assert time.monotonic() - began < DEADLINE_SECONDS

    lost = losses.count(Loss.NOT_READ)
    assert lost > 900
    assert not writer.flush(0.01)
    # Somebody reads again: the lines that waited come, and those that tell of the others.
    taken = bytearray()
    drain = threading.Thread(target=_drain, args=(reader, taken), daemon=True)
    drain.start()
    assert writer.flush(DEADLINE_SECONDS)
    writer.write(b"after\n")
    assert writer.flush(DEADLINE_SECONDS)
    eventually_sync(lambda: taken.endswith(b"after\n"))
    lines = taken.decode().splitlines()
    told = [line for line in lines if line.startswith("log.lines_lost lines=")]
    assert sum(int(line.partition("=")[2]) for line in told) == lost
    assert lines[-1] == "after"
    assert len(lines) == 1_000 - lost + len(told) + 1
    os.close(descriptor)
    drain.join()


def _drain(reader: int, into: bytearray) -> None:
    while content := os.read(reader, 65_536):
        into += content


def test_lines_after_a_full_disk_tell_how_many_are_missing(tmp_path: Path, losses: Losses) -> None:
    """While the log's disk is full nothing can say so; the first line after that must."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(descriptor, losses)
    writer.write(b"one\n")
    writer.write(b"two\n")
    assert writer.flush()
    there = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(there, descriptor)  # space again

    writer.write(b"three\n")

    assert writer.flush()
    assert (tmp_path / "log").read_bytes() == b"log.lines_lost lines=2\nthree\n"
    assert losses.count(Loss.NOT_WRITTEN) == 2
    os.close(there)
    os.close(descriptor)


def test_parts_of_a_line_stay_one_line(tmp_path: Path, losses: Losses) -> None:
    """Programs print prompts, progress and long lines in parts, each a write: none must get a line break of ours."""
    with (tmp_path / "out").open("wb") as out:
        writer = LineWriter(out.fileno(), losses)
        for part in (b"50 %\r", b"100 %", b" done\n", b"x" * 9_000, b"\n"):
            writer.write(part)
            assert writer.flush()

    assert (tmp_path / "out").read_bytes() == b"50 %\r100 % done\n" + b"x" * 9_000 + b"\n"


def test_lines_to_a_non_blocking_pipe_all_arrive(pipe: tuple[int, int], losses: Losses) -> None:
    """Another program with the same pipe or terminal may make it non-blocking; that is no loss."""
    reader, descriptor = pipe
    os.set_blocking(descriptor, False)
    writer = LineWriter(descriptor, losses)
    for _ in range(100):
        writer.write(b"x" * 499 + b"\n")
    taken = bytearray()
    drain = threading.Thread(target=_drain, args=(reader, taken), daemon=True)
    drain.start()

    assert writer.flush(DEADLINE_SECONDS)

    os.close(descriptor)
    drain.join()
    assert len(taken) == 50_000
    assert losses.count(Loss.NOT_WRITTEN) == 0


def test_event_logged_too_often_is_left_out_and_counted_in_its_next_line() -> None:
    """One caller must not make a server write without bound, and must not push the other events out."""
    clock = SteppingClock()
    rates = EventRates(clock.monotonic_seconds)

    admitted = [rates.admit("rpc.refused") for _ in range(EVENT_BURST + 7)]

    assert admitted == [0] * EVENT_BURST + [None] * 7
    assert rates.admit("shard.failed") == 0
    clock.now_seconds += 2 / EVENTS_PER_SECOND
    assert rates.admit("rpc.refused") == 7


def test_event_names_with_values_in_them_share_one_rate() -> None:
    """An application may log an event of a different name for each message: the table of rates stays bounded."""
    rates = EventRates(SteppingClock().monotonic_seconds)

    admitted = [rates.admit(f"saw {n}") for n in range(EVENT_NAMES_MAX + EVENT_BURST + 1)]

    assert admitted[-1] is None
    assert admitted.count(None) == 1


def test_event_names_with_values_in_them_leave_out_none_of_ours() -> None:
    """An application that logs a new text for each message would otherwise silence all events not seen before, such as
    that a lease is lost; and texts of any length must not stay in memory.
    """
    rates = EventRates(SteppingClock().monotonic_seconds)
    for n in range(EVENT_NAMES_MAX + EVENT_BURST + 1):
        rates.admit(f"Saw {n}.")

    assert rates.admit("session.lease_lost") == 0
    long, rates = "x" * 10_000, EventRates(SteppingClock().monotonic_seconds)
    assert [rates.admit(long + str(n)) for n in range(EVENT_BURST + 1)].count(None) == 1


class _Unrenderable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Logs are configured to this stream, as JSON."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    before = structlog.get_config()
    log_to_stderr("info")
    yield stream
    structlog.configure(**before)


def test_event_that_cannot_be_rendered_is_told_without_its_fields(stderr: io.StringIO) -> None:
    """Fields are values of applications and strangers: what their `repr` raises is no error of the work."""
    structlog.get_logger().info("thing.seen", thing=_Unrenderable())

    told = json.loads(stderr.getvalue())
    assert (told["event"], told["unrendered"], told["level"]) == (
        "thing.seen",
        "ValueError",
        "info",
    )


def test_audit_events_have_no_rate(stderr: io.StringIO) -> None:
    """Each change leaves one event: a caller with many must not hide those of others."""
    log = structlog.get_logger()
    for number in range(EVENT_BURST + 2):
        log.info("audit.apply_shards", number=number)

    events = [json.loads(line)["event"] for line in stderr.getvalue().splitlines()]
    assert events == ["audit.apply_shards"] * (EVENT_BURST + 2)


def test_event_with_a_long_field_is_cut(stderr: io.StringIO) -> None:
    """A field that repeats a request of megabytes must not be written as it is, once a call."""
    structlog.get_logger().warning("rpc.refused", request="x" * (1 << 20))

    told = json.loads(stderr.getvalue())
    assert TEXT_CHARACTERS_MAX < len(told["request"]) < TEXT_CHARACTERS_MAX + 50


def test_record_of_logging_whose_arguments_do_not_fit_is_told(
    stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries log by `logging`, whose handlers print a traceback for a record that they cannot format."""
    root = logging.getLogger("root")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", stderr)
    log_to_stderr("info", foreign_level=logging.WARNING)

    root.warning("%d of %d", "one")
    root.info("not asked for")

    told = json.loads(stderr.getvalue())
    assert (told["event"], told["logger"], told["level"]) == ("%d of %d", "root", "warning")


class _BrokenStream(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [_BrokenStream(), None])
def test_logs_that_a_program_has_not_configured_do_not_raise(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may run a member inside of it, and its standard output may end; structlog prints there by default."""
    lost = LOSSES.count(Loss.NOT_WRITTEN)
    guard_unconfigured_logs()
    monkeypatch.setattr(sys, "stdout", stream)

    structlog.get_logger().info("thing.seen")

    assert LOSSES.count(Loss.NOT_WRITTEN) == lost + 1


class _Unprintable:
    def __repr__(self) -> str:
        raise LookupError


def test_events_that_a_program_has_not_configured_and_that_cannot_be_shown_do_not_raise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A value without a text ends as the event alone, and a traceback that is text is shown below its event: structlog
    before 26 warns of one, which is an error in programs that take warnings for errors.
    """
    guard_unconfigured_logs()

    structlog.get_logger().info("thing.seen", thing=_Unprintable())
    structlog.get_logger().warning("thing.failed", exception="Traceback: of a\nLookupError")

    unshown, failed, *trace = capsys.readouterr().out.splitlines()
    assert unshown == "thing.seen unrendered=LookupError"
    assert "thing.failed" in failed
    assert trace == ["Traceback: of a", "LookupError"]


def test_logs_that_a_program_has_configured_stay_as_they_are() -> None:
    """A library does not change what its program chose."""
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    before = structlog.get_config()

    guard_unconfigured_logs()

    assert structlog.get_config() == before


_PROGRAM = """
import os, sys
from broadsheet.runtime import log_output
log_output.open_standard_descriptors()
log_output.guard_standard_streams()
log_output.EXIT_SECONDS_MAX = 0.3
from broadsheet.runtime.logs import log_to_stderr
import structlog
log_to_stderr()
structlog.get_logger().warning("first.line")
print("printed")
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
pid = os.fork()
if pid == 0:
    structlog.get_logger().warning("line.of_a_child")
    os._exit(0)
os.waitpid(pid, 0)
os.write(out, b"%d" % out)
raise RuntimeError("the last words")
"""


def _run(tmp_path: Path, redirections: str) -> tuple[int, str]:
    command = f'exec {sys.executable} -c "$1" "$2" {redirections}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, "sh", _PROGRAM, str(tmp_path / "out")],
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    return done.returncode, (tmp_path / "out").read_text()


def test_process_whose_standard_descriptors_are_closed_gets_the_null_device(tmp_path: Path) -> None:
    """Old init scripts close 0, 1 and 2: the next file or socket that is opened must not become standard error."""
    assert _run(tmp_path, "<&- >&- 2>&-") == (1, "3")


def test_process_that_crashes_or_forks_shows_its_last_lines(tmp_path: Path) -> None:
    """Lines are written by a thread, which neither a crash nor a forked child may outrun."""
    log = tmp_path / "log"

    code, _ = _run(tmp_path, f"</dev/null >{log} 2>&1")

    assert code == 1
    text = log.read_text()
    assert "first.line" in text
    assert text.count("line.of_a_child") == 1
    assert "printed" in text.splitlines(), "before or behind the first line, which a thread writes"
    assert text.endswith("RuntimeError: the last words\n")


def test_process_whose_log_is_not_read_ends_all_the_same(tmp_path: Path) -> None:
    """A member that has lost its lease prints why and ends; a full pipe must not keep it for ever."""
    reader, descriptor = os.pipe()
    os.set_blocking(descriptor, False)
    while True:
        try:
            os.write(descriptor, b"x" * 4_096)
        except BlockingIOError:
            break
    os.set_blocking(descriptor, True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(tmp_path / "out")],
            stderr=descriptor,
            stdout=descriptor,
            check=False,
            timeout=DEADLINE_SECONDS,
        )
        assert done.returncode == 1
    finally:
        os.close(reader)
        os.close(descriptor)


_FORKING_PROGRAM = """
import os, threading, time
from broadsheet.runtime.log_output import guard_standard_streams
guard_standard_streams()
def print_on():
    while True:
        print("a thread of the parent")
threading.Thread(target=print_on, daemon=True).start()
for number in range(20):
    pid = os.fork()
    if pid == 0:
        print("a child")
        os._exit(0)
    os.waitpid(pid, 0)
os._exit(0)
"""


def test_child_that_is_forked_while_a_thread_prints_can_print() -> None:
    """Pools of processes are forked from members whose threads print: a lock of the stream would hold the child up."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKING_PROGRAM],
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=DEADLINE_SECONDS,
    )

    assert done.returncode == 0
