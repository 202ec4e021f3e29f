"""Where reading goes on from a checkpoint."""

from __future__ import annotations

import pytest

from broadsheet.consumer.errors import SourceDataLossError, UnsupportedSpecError
from broadsheet.consumer.sources.kinesis.places import (
    AfterSequence,
    AtSequence,
    Beginning,
    Resume,
    TrimHorizon,
    beginning_of,
    decode_resume,
)
from broadsheet.consumer.sources.part import SOURCE_PART, Part, part_of
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ShardSpec

PAGE = Resume(begin=100, end=200, first="7", last="9")


@pytest.mark.parametrize(
    ("resume", "read_through", "beginning"),
    [
        (None, 0, Beginning(TrimHorizon(), 0, 0)),
        (PAGE, 200, Beginning(AfterSequence("9"), 200, 200)),
        (PAGE, 100, Beginning(AtSequence("7"), 100, 100)),
        (PAGE, 150, Beginning(AtSequence("7"), 100, 150)),
    ],
)
def test_beginning_follows_what_was_consumed(
    resume: Resume | None, read_through: int, beginning: Beginning
) -> None:
    """Behind a page that was consumed whole; else at its first record, leaving out what was consumed."""
    assert beginning_of("s", resume, read_through, TrimHorizon()) == beginning


@pytest.mark.parametrize("read_through", [99, 201])
def test_checkpoint_that_contradicts_itself_is_refused(read_through: int) -> None:
    """No record can be told to be the next."""
    with pytest.raises(SourceDataLossError, match="not within"):
        beginning_of("s", PAGE, read_through, TrimHorizon())


def test_resume_survives_the_checkpoint_and_foreign_ones_are_refused() -> None:
    """It is written as JSON; what is none was not written by us."""
    assert decode_resume("s", PAGE.encode()) == PAGE
    with pytest.raises(SourceDataLossError, match="cannot be read"):
        decode_resume("s", b"\x01")


def test_part_is_that_of_the_label() -> None:
    """Without one a shard reads everything; a wrong one is named."""

    def labelled(text: str) -> ShardSpec:
        return ShardSpec(labels=label_set({SOURCE_PART: text}))

    assert part_of(ShardSpec()) == Part(0, 1)
    assert part_of(labelled("3/4")) == Part(3, 4)
    for text in ("4/4", "x/4", "1", "-1/4", "1/"):
        with pytest.raises(UnsupportedSpecError, match="source-part"):
            part_of(labelled(text))
