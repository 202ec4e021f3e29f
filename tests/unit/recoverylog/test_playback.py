"""What a player makes of the bytes of logs: files, jumps, and what it must not pass over."""

from __future__ import annotations

import pytest

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.forks import leads_elsewhere
from broadsheet.consumer.recoverylog.fsm import OperationOutcome
from broadsheet.consumer.recoverylog.operation import framed
from broadsheet.consumer.recoverylog.playback import JUMP_BYTES, Playback, PlaybackPosition
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp
from tests.support.played_logs import PlayedLogs
from tests.support.recorded_ops import LOG, FileLog, OpChain

PIECES = (1 << 30, 7, 1)
"""Bytes of each piece in which a log is fed."""


def some_files(author: int = 1) -> tuple[FileLog, OpChain, dict[str, bytes]]:
    """Return a log, the chain that wrote it, and the files it comes to."""
    log, chain = FileLog.empty(), OpChain(author)
    log.append(
        chain.create("/a"),
        chain.write(1, 0, b"aaaaaa"),
        chain.create("/b.next"),
        chain.write(3, 0, b"bbb"),
        chain.link(3, "/b"),
        chain.unlink(3, "/b.next"),
        chain.write(1, 3, b"AAAAAA"),
        chain.create("/c"),
        chain.unlink(8, "/c"),
        chain.set_property("/p", "1"),
    )
    return log, chain, {"/a": b"aaaAAAAAA", "/b": b"bbb", "/p": b"1"}


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_log_plays_to_its_files(piece_bytes: int) -> None:
    """Overlapping writes, a rename, a file that goes, a property; from the beginning and from hints."""
    log, _, files = some_files()
    for hints in (FSMHints(log=LOG), log.hints()):
        played = PlayedLogs(hints, {LOG: [(0, log.content)]}).play(piece_bytes=piece_bytes)
        assert played.files == files
        assert played.playback.complete
        assert played.playback.position == PlaybackPosition(LOG, len(log.content))
        assert played.playback.whole_to == len(log.content)
        assert played.playback.fsm.hints(LOG) == log.hints()


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_playing_goes_on_behind_the_hints(piece_bytes: int) -> None:
    """Hints are old the moment they are made; garbage and copies change nothing."""
    log, chain, files = some_files()
    hints = log.hints()
    again = chain.write(1, 0, b"x")
    log.append(again)
    log.garbage(b"garbage" + again.framed)
    log.append(chain.write(3, 3, b"B"), chain.create("/late"))

    played = PlayedLogs(hints, {LOG: [(0, log.content)]}).play(piece_bytes=piece_bytes)
    assert played.files == files | {"/a": b"xaaAAAAAA", "/b": b"bbbB", "/late": b""}
    assert played.playback.skipped_bytes == len(b"garbage")
    assert not played.playback.ignored


def test_raw_bytes_of_what_does_not_apply_are_passed_over() -> None:
    """A fenced author's write is as long as it says, whatever is in it; odd operations are counted by why."""
    log, chain, files = some_files()
    zombie = chain.branch(9)
    log.append(chain.nothing())
    log.append(
        zombie.write(1, 0, framed(b"not an operation")),
        zombie.write(1, 0, b"zzz"),
        zombie.write(1, 0, b"zzz"),
    )

    played = PlayedLogs(FSMHints(log=LOG), {LOG: [(0, log.content)]}).play()
    assert played.files == files
    assert played.playback.skipped_bytes == 0
    assert played.playback.ignored == {
        OperationOutcome.CHECKSUM_MISMATCH: 1,
        OperationOutcome.SEQUENCE_SKIPPED: 1,
    }


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_dead_parts_of_a_log_are_not_read(piece_bytes: int) -> None:
    """The hints lead to each live run, and behind the last one to the end. What lies between is not looked at: it
    may be gone.
    """
    log, chain, _ = some_files()
    first_end = len(log.content)
    log.append(chain.create("/tmp"), *(chain.write(11, 0, b"t" * 50) for _ in range(10)))
    log.append(chain.unlink(11, "/tmp"))
    second_begin = len(log.content)
    log.append(chain.create("/d"), chain.write(23, 0, b"d"))
    hints = log.hints()
    log.append(chain.write(23, 1, b"D"))

    spans = [(0, log.content[:first_end]), (second_begin, log.content[second_begin:])]
    played = PlayedLogs(hints, {LOG: spans}).play(piece_bytes=piece_bytes)
    assert played.files["/d"] == b"dD"
    assert "/tmp" not in played.files
    assert played.playback.fsm.next_seq == chain.seq
    assert played.playback.whole_to == len(log.content)


def test_two_branches_of_a_log_play_to_the_files_of_the_hinted_author() -> None:
    """A log lost its registers, and two recorders went on from the same operation, in turns."""
    log, trunk, files = some_files()
    left, right = trunk.branch(2), trunk.branch(3)
    lefts = [left.create("/side"), left.write(11, 0, b"left"), left.write(1, 0, b"l")]
    rights = [right.write(1, 0, b"r"), right.create("/side"), right.write(12, 0, b"right")]
    both = log.content
    for ours, others in zip(lefts, rights, strict=True):
        both += ours.framed + others.framed
    for ops, expected in (
        (lefts, {"/side": b"left", "/a": b"laaAAAAAA"}),
        (rights, {"/side": b"right", "/a": b"raaAAAAAA"}),
    ):
        branch, _, _ = some_files()
        branch.append(*ops)
        hints = branch.hints()
        for node in hints.live_nodes:
            for segment in node.segments:
                segment.last_offset = 0
        played = PlayedLogs(hints, {LOG: [(0, both)]}).play()
        assert played.files == files | expected


@pytest.mark.parametrize("piece_bytes", PIECES)
def test_state_that_spans_logs_is_played_from_all_of_them(piece_bytes: int) -> None:
    """A log went on in another, twice; each has live parts, and other things beside them."""
    first, chain, files = some_files()
    first.append(chain.write(1, 0, b"1"))
    first.garbage(b"of whoever wrote on")
    second = FileLog(first.fsm, "logs/second")
    second.garbage(OpChain(77).create("/other").framed)
    heir = chain.branch(2)
    second.append(heir.nothing(), heir.write(3, 0, b"2"))
    third = FileLog(first.fsm, "logs/third")
    last = heir.branch(3)
    third.append(last.nothing(), last.create("/e"), last.write(15, 0, b"e"))
    hints = third.hints()
    third.append(last.write(1, 1, b"3"))

    logs = {each.name: [(0, each.content)] for each in (first, second, third)}
    played = PlayedLogs(hints, logs).play(piece_bytes=piece_bytes)
    assert played.files == files | {"/a": b"13aAAAAAA", "/b": b"2bb", "/e": b"e"}
    assert [each.log for each in played.positions] == [LOG, "logs/second", "logs/third"]
    assert played.playback.position == PlaybackPosition("logs/third", len(third.content))


def test_jumps_far_ahead_are_known_early() -> None:
    """To another log, or over more than `JUMP_BYTES`; what is read by the way, or is next to it, is none."""
    log, chain, _ = some_files()
    log.append(chain.create("/tmp"), chain.write(11, 0, bytes(JUMP_BYTES // 2)))
    log.append(chain.unlink(11, "/tmp"))
    near = len(log.content)
    log.append(chain.create("/near"))
    log.append(chain.create("/tmp"), chain.write(15, 0, bytes(2 * JUMP_BYTES)))
    log.append(chain.unlink(15, "/tmp"))
    far = len(log.content)
    log.append(chain.create("/far"))
    exact = log.hints()
    bounds = log.hints()
    for node in bounds.live_nodes:
        node.segments[0].last_offset = 0

    for hints in (exact, bounds):
        playback = Playback(hints)
        assert len(playback.fsm.hinted_segments) == 3
        ahead = [playback.upcoming]
        for begin, end in ((0, near + 5), (near + 5, far)):
            playback.feed(begin, log.content[begin:end])
            ahead.append(playback.upcoming)
        assert ahead == [PlaybackPosition(LOG, far), PlaybackPosition(LOG, far), None]
        assert playback.seek == PlaybackPosition(LOG, far)

    elsewhere = FileLog(log.fsm, "logs/second")
    elsewhere.append(chain.nothing(), chain.write(1, 0, b"x"))
    playback = Playback(elsewhere.hints())
    playback.feed(0, log.content[: near + 5])
    assert playback.upcoming == PlaybackPosition(LOG, far)
    playback.go_to(PlaybackPosition(LOG, far))
    assert playback.upcoming == PlaybackPosition(
        "logs/second", elsewhere.hints().live_nodes[0].segments[1].first_offset
    )


def test_left_bytes_are_those_of_earlier_logs_that_live_and_then_all_of_this_one() -> None:
    """What an earlier log got after the fork is not played, however far its head is by now."""
    log, chain, _ = some_files()
    child = FileLog(log.fsm, "logs/child")
    child.append(chain.nothing(), chain.write(1, 0, b"x"))
    hints = child.hints()
    segments = Playback(hints).fsm.hinted_segments
    of_parent = sum(each.last_offset - each.first_offset for each in segments if each.log == LOG)
    # Both go on: the parent's is of no concern, the child's is to be played.
    heads = {LOG: 1 << 30, "logs/child": len(child.content) + 500}
    own = heads["logs/child"] - next(each.first_offset for each in segments if each.log != LOG)
    playback = Playback(hints)

    assert playback.left_bytes(heads) == of_parent + own
    playback.feed(0, log.content[:50])
    assert playback.left_bytes(heads) == of_parent - 50 + own
    playback = Playback(hints)
    while (target := playback.seek) is not None and target.log == LOG:
        playback.go_to(target)
        playback.feed(target.offset, log.content[target.offset :])
    playback.go_to(PlaybackPosition("logs/child", heads["logs/child"] - own))
    playback.feed(heads["logs/child"] - own, child.content[heads["logs/child"] - own :])
    assert playback.left_bytes(heads) == 500
    assert Playback(FSMHints(log=LOG)).left_bytes({LOG: 10}) == 10


def test_hand_over_applies_if_it_comes_next() -> None:
    """What stands behind it is not played."""
    log, chain, files = some_files()
    played = PlayedLogs(log.hints(), {LOG: [(0, log.content)]}).play()
    injected = played.playback.hand_over_to(5)
    late = chain.write(1, 0, b"late")

    assert RecordedOp.FromString(injected[8:]).author == 5
    changes = played.playback.feed(len(log.content), injected + late.framed)
    assert not changes
    assert played.playback.handed_over
    assert played.playback.whole_to == len(log.content) + len(injected)
    assert played.files == files


def test_hand_over_that_comes_late_is_tried_again() -> None:
    """The old recorder's operation took the number; it is part of what is recovered. Whatever it writes after the
    second attempt is not, for all who play the log.
    """
    log, chain, files = some_files()
    played = PlayedLogs(log.hints(), {LOG: [(0, log.content)]}).play()
    early, first = chain.write(1, 0, b"early"), played.playback.hand_over_to(5)
    played.perform(played.playback.feed(len(log.content), early.framed + first))
    outcomes = [played.playback.handed_over]

    content = log.content + early.framed + first
    second = played.playback.hand_over_to(5)
    late = chain.write(1, 0, b"late")
    played.perform(played.playback.feed(len(content), second + late.framed))
    outcomes.append(played.playback.handed_over)
    assert outcomes == [False, True]
    assert played.files == files | {"/a": b"earlyAAAA"}

    tailing = PlayedLogs(FSMHints(log=LOG), {LOG: [(0, content + second + late.framed)]}).play()
    assert tailing.files == played.files
    assert tailing.playback.fsm.next_seq == played.playback.fsm.next_seq


def test_hole_over_live_operations_is_loss() -> None:
    """The hints say where the run ends, and reading went on behind it."""
    log, chain, _ = some_files()
    log.append(chain.create("/d"))
    middle = len(log.content) // 2
    spans = [(0, log.content[:middle]), (len(log.content) + 10, chain.nothing().framed)]

    with pytest.raises(LogDataLossError, match=rf"{LOG}.*bytes {middle} to .*live.*shards rewind"):
        PlayedLogs(log.hints(), {LOG: spans}).play()


def test_hole_within_a_write_is_loss() -> None:
    """Some of a file's bytes are gone."""
    log, chain, _ = some_files()
    log.append(chain.write(1, 0, b"0123456789"))
    cut = len(log.content) - 3
    spans = [(0, log.content[:cut]), (cut + 1, log.content[cut + 1 :])]

    with pytest.raises(LogDataLossError, match=f"bytes {cut} to {cut + 1} are gone"):
        PlayedLogs(FSMHints(log=LOG), {LOG: spans}).play()


@pytest.mark.parametrize("hinted", ["nothing", "bounds", "less"])
def test_hole_that_takes_operations_is_loss_whatever_the_hints_say(hinted: str) -> None:
    """Also with hints that know no ends, behind the hints, and without any: the sequence has a gap."""
    log, chain, _ = some_files()
    hints = log.hints() if hinted != "nothing" else FSMHints(log=LOG)
    gone = len(log.content)
    log.append(chain.write(1, 0, b"gone"))
    after = len(log.content)
    log.append(chain.write(1, 1, b"left"))
    if hinted == "bounds":
        hints = log.hints()
        for node in hints.live_nodes:
            node.segments[0].last_offset = 0
    spans = [(0, log.content[:gone]), (after, log.content[after:])]
    if hinted == "nothing":
        spans = spans[1:]

    with pytest.raises(LogDataLossError, match="are gone, and with them operations"):
        PlayedLogs(hints, {LOG: spans}).play()


def test_hole_that_takes_nothing_of_ours_is_passed_over() -> None:
    """Garbage, copies and a fenced author's operations may go."""
    log, chain, files = some_files()
    gone = len(log.content)
    log.garbage(b"garbage" + OpChain(9).create("/x").framed)
    after = len(log.content)
    log.append(chain.write(1, 0, b"z"))
    spans = [(0, log.content[:gone]), (after, log.content[after:])]

    played = PlayedLogs(FSMHints(log=LOG), {LOG: spans}).play()
    assert played.files == files | {"/a": b"zaaAAAAAA"}


def test_playback_tells_where_an_operation_begins_that_has_no_end() -> None:
    """All is read, but not all is whole: bytes that look like an operation, or like a long write."""
    log, _, _ = some_files()
    whole_to = len(log.content)
    write = OpChain(9).write(1, 0, bytes(1000))
    for tail in (b"\x66\x33\x93", b"\x66\x33\x93\x36\xff\x00\x00\x00...", write.framed[:-1]):
        played = PlayedLogs(FSMHints(log=LOG), {LOG: [(0, log.content + tail)]}).play(piece_bytes=5)
        assert played.playback.position.offset == whole_to + len(tail)
        assert played.playback.whole_to == whole_to


def test_bytes_that_are_fed_twice_count_once() -> None:
    """A feed may begin before where we are."""
    log, _, files = some_files()
    played = PlayedLogs(FSMHints(log=LOG), {})
    half = len(log.content) // 2
    played.perform(played.playback.feed(0, log.content[:half]))
    played.perform(played.playback.feed(half - 20, log.content[half - 20 : half]))
    played.perform(played.playback.feed(half - 20, log.content[half - 20 :]))
    assert played.files == files


def test_operations_that_follow_from_others_are_told_until_the_log_goes_on() -> None:
    """Whoever takes a log over must know that its end is of a branch it has not seen; copies are none."""
    log, chain, _ = some_files()
    whole = log.content
    log.append(chain.branch(1).nothing())
    stray = OpChain(2, seq=chain.seq + 5, checksum=1)
    log.append(stray.create("/x"), stray.create("/y"))
    playback = Playback(FSMHints(log=LOG))
    playback.feed(0, whole)
    assert playback.strayed == 0

    playback.feed(len(whole), log.content[len(whole) :])
    assert playback.strayed == 2

    end = len(log.content)
    goes_on = OpChain(3, seq=log.fsm.next_seq, checksum=log.fsm.next_checksum)
    log.append(goes_on.nothing())
    playback.feed(end, log.content[end:])
    assert playback.strayed == 0


def test_operations_before_the_hints_do_not_hide_on_which_branch_of_a_fork_their_author_is() -> (
    None
):
    """Why: they were taken for strayed, so that the holder named by the registers was of neither branch of a later
    fork, and recovery was refused.
    """
    log, chain = FileLog.empty(), OpChain(1)
    log.append(
        chain.nothing(), chain.set_property("/p", "1"), chain.create("/a"), chain.write(3, 0, b"a")
    )
    hints = log.hints()
    # A recorder knows only a lower bound of where its operation began.
    hints.live_nodes[0].segments[0].first_offset = 1
    stranger = chain.branch(9)
    for each in (stranger.nothing(), chain.write(3, 1, b"b"), stranger.create("/strange")):
        log.append(each)

    fork = PlayedLogs(hints, {LOG: [(0, log.content)]}).play().playback.fork

    assert fork is not None
    assert (fork.seq_no, fork.passed, dict(fork.others)) == (5, 1, {1: 5})
    assert leads_elsewhere(fork, {1}) is True
    assert leads_elsewhere(fork, {9}) is False


def test_author_of_a_decided_fork_is_of_the_other_branch_of_a_later_one() -> None:
    """An operation of his that strayed before the later fork must not hide that he is of its other branch."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"))
    stray, stranger = chain.branch(1), chain.branch(2)
    log.append(stranger.write(1, 0, b"s"), stray.write(1, 0, b"a"))
    rest = stranger.branch(1)
    log.append(stranger.write(1, 1, b"s"), rest.write(1, 1, b"a"))
    playback = Playback(FSMHints(log=LOG), {}, {(1, 2)})

    playback.feed(0, log.content)

    assert playback.fork is not None
    assert (playback.fork.seq_no, dict(playback.fork.others)) == (3, {1: 3})
