"""Batches: parts of them, and parts made one again."""

from __future__ import annotations

import pytest

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags
from tests.support.sequencing import Log, messages_of


@pytest.fixture
def log() -> Log:
    """Five messages."""
    log = Log()
    for clock in range(1, 6):
        log.append(7, clock, Flags.OUTSIDE_TXN)
    return log


@pytest.mark.parametrize("indices", [[], [0], [1, 2, 3], [0, 2, 3], [0, 4], [0, 1, 2, 3, 4]])
def test_picked_messages_are_those_at_the_indices(log: Log, indices: list[int]) -> None:
    """Plan: none, neighbours and others. Why: neighbours are cut out in another way."""
    picked = log.batch().pick(indices)

    assert messages_of(picked) == [log.messages[index] for index in indices]


def test_parts_make_the_whole(log: Log) -> None:
    """Plan: cut everywhere, and join. Why: columns must stay in step."""
    whole = log.batch()
    for cut in range(1, len(whole)):
        parts = [whole.span(0, cut), whole.span(cut, len(whole))]
        assert messages_of(MessageBatch.joined(parts)) == log.messages


def test_part_of_all_forgets_how_its_reader_resumes(log: Log) -> None:
    """Plan: a batch with what its reader resumes by, and one without. Why: only the first needs a copy."""
    whole = log.batch()
    columns = (whole.begins, whole.ends, whole.producers, whole.clocks, whole.flags, whole.payloads)
    resumable = MessageBatch(whole.journal, *columns, whole.message_type, {"part": b"17"})

    assert whole.span(0, 5) is whole
    assert not resumable.span(0, 5).resumes
