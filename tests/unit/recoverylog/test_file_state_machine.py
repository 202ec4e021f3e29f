"""Files from operations: each kind, each way in which one does not apply, and starting from hints."""

from __future__ import annotations

import pytest

from broadsheet.consumer.errors import HintsError
from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine, OperationOutcome
from broadsheet.wire import recorded_op_pb2 as pb
from tests.support.recorded_ops import LOG, ChainedOp, FileLog, OpChain

APPLIED, NOT_TRACKED = OperationOutcome.APPLIED, OperationOutcome.NOT_TRACKED


def played(
    hints: pb.FSMHints, ops: list[ChainedOp]
) -> tuple[FileStateMachine, list[OperationOutcome]]:
    """Apply operations of a log to a state machine made of hints."""
    fsm = FileStateMachine(hints)
    return fsm, [fsm.apply(each.op, each.payload, FilePlacement(LOG, 1, 2)) for each in ops]


def test_first_operation_has_number_one_and_checksums_chain() -> None:
    """The numbers are Gazette's: a log of theirs must go on with us."""
    fsm = FileStateMachine(pb.FSMHints(log=LOG))
    create = pb.RecordedOp(seq_no=1, author=1, create=pb.RecordedOp.Create(path="/a"))
    link = pb.RecordedOp(
        seq_no=2, checksum=0x90F599E3, author=1, link=pb.RecordedOp.Link(fnode=1, path="/b")
    )

    assert (fsm.next_seq, fsm.next_checksum) == (1, 0)
    assert fsm.apply(create, b"1", FilePlacement(LOG, 0, 1)) is APPLIED
    assert fsm.apply(link, b"2", FilePlacement(LOG, 1, 2)) is APPLIED
    assert (fsm.next_seq, fsm.next_checksum) == (3, 0x7355C460)
    assert fsm.links == {"/a": 1, "/b": 1}


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_operation_out_of_sequence_changes_nothing(seq: int) -> None:
    """A copy, one of a fenced author, or one whose predecessor is missing."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"), chain.nothing())
    odd = OpChain(1, seq=seq, checksum=chain.checksum).create("/b")

    expected = OperationOutcome.STALE if seq < 3 else OperationOutcome.SEQUENCE_SKIPPED
    assert log.append(odd) == [expected]
    assert (log.fsm.next_seq, log.fsm.next_checksum) == (3, chain.checksum)
    assert log.fsm.links == {"/a": 1}


def test_operation_with_another_checksum_is_of_another_branch() -> None:
    """Its number fits, but it follows something else."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"))
    odd = OpChain(1, seq=2, checksum=chain.checksum ^ 1).create("/b")

    assert log.append(odd) == [OperationOutcome.CHECKSUM_MISMATCH]
    assert (log.fsm.next_seq, log.fsm.next_checksum) == (2, chain.checksum)


def test_created_file_is_known_by_its_number_and_path() -> None:
    """A path that names a file or a property cannot be created."""
    log, chain = FileLog.empty(), OpChain(1)
    ops = [chain.create("/a"), chain.set_property("/p", "1")]

    assert log.append(*ops) == [APPLIED] * 2
    assert log.append(chain.branch(1).create("/a")) == [OperationOutcome.PATH_TAKEN]
    assert log.append(chain.branch(1).create("/p")) == [OperationOutcome.PATH_TAKEN]
    assert log.append(chain.create("/b")) == [APPLIED]
    assert log.fsm.links == {"/a": 1, "/b": 3}
    assert log.fsm.fnodes[3].links == {"/b"}


def test_file_may_have_several_paths() -> None:
    """Each of them free; a file that is not tracked takes its number all the same."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"), chain.set_property("/p", "1"))

    assert log.append(chain.branch(1).link(1, "/a")) == [OperationOutcome.PATH_TAKEN]
    assert log.append(chain.branch(1).link(1, "/p")) == [OperationOutcome.PATH_TAKEN]
    assert log.append(chain.link(99, "/b"), chain.link(1, "/b")) == [NOT_TRACKED, APPLIED]
    assert log.fsm.links == {"/a": 1, "/b": 1}
    assert log.fsm.next_seq == 5


def test_file_is_gone_with_its_last_path() -> None:
    """A path that is not the file's takes nothing; hints shrink to none."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"), chain.link(1, "/b"), chain.create("/c"))

    assert log.append(chain.branch(1).unlink(1, "/c")) == [OperationOutcome.PATH_NOT_LINKED]
    assert log.append(chain.unlink(99, "/a"), chain.unlink(1, "/a")) == [NOT_TRACKED, APPLIED]
    assert (log.fsm.links, log.fsm.fnodes[1].links) == ({"/b": 1, "/c": 3}, {"/b"})
    assert log.append(chain.unlink(1, "/b")) == [APPLIED]
    assert [node.fnode for node in log.hints().live_nodes] == [3]
    assert log.append(chain.unlink(1, "/b"), chain.unlink(3, "/c")) == [NOT_TRACKED, APPLIED]
    assert log.hints() == pb.FSMHints(log=LOG)


def test_property_is_replaced_and_never_covers_a_file() -> None:
    """Hints hold its content."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"))

    assert log.append(chain.branch(1).set_property("/a", "x")) == [OperationOutcome.PATH_TAKEN]
    assert log.append(chain.set_property("/p", "1"), chain.set_property("/p", "2")) == [APPLIED] * 2
    assert log.hints().properties == [pb.Property(path="/p", content="2")]


def test_writes_extend_the_segment_of_their_author() -> None:
    """Hints of a player are exact; a new author begins a segment, as does another log; a file that is not tracked
    takes the number.
    """
    log, one = FileLog.empty(), OpChain(1)
    ops = [one.create("/a"), one.write(1, 0, b"abc"), one.write(99, 0, b"x"), one.write(1, 3, b"d")]
    assert log.append(*ops) == [APPLIED, APPLIED, NOT_TRACKED, APPLIED]
    first_end = len(log.content)
    two = one.branch(2)
    log.append(two.nothing(), two.write(1, 0, b"z"))
    elsewhere = two.write(1, 1, b"y")
    log.fsm.apply(elsewhere.op, elsewhere.payload, FilePlacement("logs/next", 100, 120))

    first, second, third = log.fsm.hints("logs/next").live_nodes[0].segments
    assert (first.author, first.first_seq_no, first.last_seq_no, first.log) == (1, 1, 4, LOG)
    assert (first.first_offset, first.last_offset, first.first_checksum) == (0, first_end, 0)
    assert (second.author, second.first_seq_no, second.last_seq_no, second.log) == (2, 6, 6, LOG)
    assert second.last_offset == len(log.content)
    assert (third.author, third.first_offset, third.last_offset, third.log) == (2, 100, 120, "")


def test_live_segments_must_make_sense() -> None:
    """Hints without segments, of a file that its first segment does not create, out of order, of another log."""

    def segment(first: int, last: int, log: str = "") -> pb.Segment:
        return pb.Segment(
            author=1, first_seq_no=first, first_offset=first, last_seq_no=last, log=log
        )

    def node(fnode: int, *segments: pb.Segment) -> pb.FnodeSegments:
        return pb.FnodeSegments(fnode=fnode, segments=segments)

    sound = [node(2, segment(2, 4)), node(3, segment(3, 9))]
    fsm = FileStateMachine(pb.FSMHints(log=LOG, live_nodes=sound))
    assert [(each.first_seq, each.last_seq) for each in fsm.hinted_segments] == [(2, 9)]
    assert list(fsm.hinted_fnodes) == [2, 3]

    for nodes, told in (
        ([node(2)], "fnode 2: expected segments"),
        ([node(3, segment(2, 4))], "fnode 3: expected segments"),
        (sound[::-1], "expected fnodes to ascend"),
        ([node(2, segment(2, 4, "logs/b"))], "expected the last segment in this log"),
        ([node(2, segment(2, 4)), node(3, segment(0, 9))], "expected segments"),
    ):
        with pytest.raises(HintsError, match=told):
            FileStateMachine(pb.FSMHints(log=LOG, live_nodes=nodes))


def test_playing_from_hints_begins_at_the_first_live_file_and_passes_over_the_dead() -> None:
    """Files that were gone when the hints were made are stepped over, the gap between two live runs is not read, and
    the hints that come out are exact.
    """
    log, one = FileLog.empty(), OpChain(1)
    dead = [one.create("/dead"), one.write(1, 0, b"x")]
    first = [one.create("/a"), one.create("/tmp"), one.write(4, 0, b"x"), one.write(3, 0, b"a")]
    gap = [one.unlink(1, "/dead"), one.unlink(4, "/tmp"), one.nothing()]
    last = [one.create("/b"), one.set_property("/p", "1")]
    log.append(*dead, *first, *gap, *last)
    hints = log.hints()

    fsm, verdicts = played(hints, [*first, *last])
    assert verdicts == [APPLIED, NOT_TRACKED, NOT_TRACKED, APPLIED, APPLIED, APPLIED]
    assert (fsm.next_seq, fsm.next_checksum) == (one.seq, one.checksum)
    assert (fsm.links, fsm.properties) == ({"/a": 3, "/b": 10}, {"/p": "1"})
    assert not fsm.hinted_segments
    assert not fsm.hinted_fnodes


def test_hinted_file_that_is_not_created_is_an_error() -> None:
    """The number fits, the checksum fits: the hints are of something else."""
    log, one = FileLog.empty(), OpChain(1)
    log.append(one.create("/a"))
    hints = log.hints()
    hints.live_nodes.add(fnode=2).segments.add(
        author=1, first_seq_no=2, first_checksum=one.checksum, first_offset=5, last_seq_no=3
    )
    first = OpChain(1)

    fsm, verdicts = played(hints, [first.create("/a"), first.write(1, 0, b"x")])
    assert verdicts == [APPLIED, OperationOutcome.HINTED_FNODE_NOT_CREATED]
    assert fsm.next_seq == 2


def test_hints_name_the_author_whose_branch_to_follow() -> None:
    """Two authors continued the same operation, as can be when a log loses its registers. The hints of either lead
    to its own files; behind the hints the branch goes on with whoever follows in sequence.
    """
    trunk, common = OpChain(1), FileLog.empty()
    created = trunk.create("/a")
    common.append(created)
    left, right = trunk.branch(2), trunk.branch(3)
    lefts = [left.create("/left"), left.write(2, 0, b"left")]
    rights = [right.nothing(), right.create("/right"), right.write(3, 0, b"right")]
    mixed = [created, lefts[0], rights[0], rights[1], lefts[1], rights[2]]

    for ours, path, fnode in ((lefts, "/left", 2), (rights, "/right", 3)):
        branch = FileLog.empty()
        branch.append(created, *ours)
        fsm, verdicts = played(branch.hints(), mixed)
        assert fsm.links == {"/a": 1, path: fnode}
        others = [verdict for op, verdict in zip(mixed, verdicts, strict=True) if op not in ours]
        assert APPLIED not in others[1:]
        follower = OpChain(9, seq=fsm.next_seq, checksum=fsm.next_checksum).create("/c")
        assert fsm.apply(follower.op, follower.payload, FilePlacement(LOG, 1, 2)) is APPLIED


def test_author_without_a_hint_is_refused_before_anything_else() -> None:
    """While hints last, even if number and checksum fit."""
    log, one = FileLog.empty(), OpChain(1)
    log.append(one.create("/a"), one.write(1, 0, b"x"))
    stranger = OpChain(2)

    fsm, verdicts = played(log.hints(), [stranger.create("/a")])
    assert verdicts == [OperationOutcome.NOT_HINTED_AUTHOR]
    assert fsm.next_seq == 1


def test_path_that_became_a_property_was_a_file_before() -> None:
    """The hints know the property; the log, played from a file before it, still has the old file's operations."""
    log, one = FileLog.empty(), OpChain(1)
    ops = [
        one.create("/a"),
        one.create("/p"),
        one.link(1, "/q"),
        one.unlink(1, "/q"),
        one.unlink(2, "/p"),
        one.set_property("/p", "1"),
        one.set_property("/q", "1"),
        one.write(1, 0, b"x"),
    ]
    assert log.append(*ops) == [APPLIED] * len(ops)

    fsm, verdicts = played(log.hints(), ops)
    assert set(verdicts) <= {APPLIED, NOT_TRACKED}
    assert (fsm.links, fsm.properties) == ({"/a": 1}, {"/p": "1", "/q": "1"})


def test_property_is_as_the_hints_say_though_only_an_older_value_is_played() -> None:
    """The newest value stands in a part of the log that nothing live is in."""
    log, one = FileLog.empty(), OpChain(1)
    first = [one.create("/a"), one.set_property("/p", "old"), one.write(1, 0, b"a")]
    gap = [one.nothing(), one.set_property("/p", "new"), one.nothing()]
    last = [one.create("/b")]
    log.append(*first, *gap, *last)

    fsm, verdicts = played(log.hints(), [*first, *last])
    assert verdicts == [APPLIED] * 4
    assert fsm.properties == {"/p": "new"}


def test_properties_alone_are_played_from_the_beginning() -> None:
    """Hints without files say nothing of where to begin, so the whole log is read."""
    log, one = FileLog.empty(), OpChain(1)
    ops = [one.create("/p"), one.unlink(1, "/p"), one.set_property("/p", "1")]
    log.append(*ops)

    fsm, verdicts = played(log.hints(), ops)
    assert verdicts == [APPLIED] * 3
    assert fsm.properties == {"/p": "1"}


def test_file_that_dies_where_hints_skip_is_not_taken_for_live() -> None:
    """A file came and went while another was written, and its end is between two segments. Its path is free for the
    next file, though nobody who starts from these hints sees it go.
    """
    log, first = FileLog.empty(), OpChain(1)
    log.append(first.create("/db"), first.create("/wal"), first.write(1, 0, b"a"))
    log.append(first.unlink(2, "/wal"))
    second = first.branch(2)
    log.append(second.nothing(), second.write(1, 1, b"b"))
    ops = [second.create("/wal"), second.write(1, 2, b"c")]
    hints = log.hints()
    assert [len(node.segments) for node in hints.live_nodes] == [2]

    again = OpChain(1)
    history = [again.create("/db"), again.create("/wal"), again.write(1, 0, b"a")]
    history += [again.unlink(2, "/wal")]
    after = again.branch(2)
    history += [after.nothing(), after.write(1, 1, b"b")]
    fsm, _ = played(hints, [*history, *ops])

    assert fsm.links == {"/db": 1, "/wal": 7}
    assert fsm.next_seq == 9
