"""What readers of sources that are no journals note in checkpoints: kept with the offsets that it belongs to."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.journals.message.sequencer import Sequencer
from tests.support.message_batches import FRAME_BYTES, WrittenJournal, single


def test_resume_is_in_the_checkpoint_once_its_batch_is_begun() -> None:
    """A checkpoint within a batch holds that batch's note and the offset within it: together they name the place."""
    journal = WrittenJournal("feed/a")
    first = replace(journal.batch(single(1), single(2)), resumes={"feed/a": b"one"})
    second = replace(journal.batch(single(3), single(4)), resumes={"feed/a": b"two"})
    sequencer = Sequencer({})

    sequencer.queue(first)
    sequencer.consume(1)
    early = sequencer.take_checkpoint()["feed/a"]
    sequencer.consume(1)
    sequencer.queue(second)
    late = sequencer.take_checkpoint()["feed/a"]

    assert (early.read_through, early.resume) == (FRAME_BYTES, b"one")
    assert (late.read_through, late.resume) == (2 * FRAME_BYTES, b"two")


def test_resume_of_a_source_without_messages_is_kept_through_restores() -> None:
    """A note may concern a source of which nothing was read yet; a restored sequencer has it still."""
    journal = WrittenJournal("feed/a")
    batch = replace(journal.batch(single(1)), resumes={"feed/b": b"from the start"})
    sequencer = Sequencer({})
    sequencer.queue(batch)
    sequencer.consume(1)

    restored = Sequencer(sequencer.take_checkpoint()).take_checkpoint()

    assert (restored["feed/b"].read_through, restored["feed/b"].resume) == (0, b"from the start")
    assert restored["feed/a"].resume == b""
