"""What a reset makes of a checkpoint, whether it fits what is there, and what checkpoints keep beside offsets: pure."""

from __future__ import annotations

import pytest

from broadsheet.consumer.errors import SourceReplacedError
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.shard.source_resets import SourceReset, apply_reset, is_of, was_applied
from broadsheet.consumer.shard.supervision import AttemptFailure, RestartPolicy, Supervision
from broadsheet.journals.errors import JournalReplacedError
from broadsheet.journals.guard import Present
from broadsheet.journals.message.checkpoint import SourceOrigins
from broadsheet.wire.identity_pb2 import JournalEpoch, JournalIdentity
from broadsheet.wire.shard_pb2 import Checkpoint

JOURNAL = "a/journal"
EPOCH = JournalEpoch(incarnation=b"new", number=1, nonce=5)
RESET = SourceReset(id=b"one", journal=JOURNAL, offset=0, epoch=EPOCH)
NEW = JournalIdentity(
    incarnation=b"new", epochs=[JournalIdentity.Epoch(number=1, nonce=5, begin=0)]
)
NEWER = JournalIdentity(
    incarnation=b"newer", epochs=[JournalIdentity.Epoch(number=1, nonce=6, begin=0)]
)


def checkpoint() -> Checkpoint:
    """Return a checkpoint of the journal that was replaced, with a message pending."""
    found = Checkpoint(ack_intents={"out": b"ack"})
    source = found.sources[JOURNAL]
    source.read_through = 900
    source.epoch.CopyFrom(JournalEpoch(incarnation=b"old", number=3, nonce=1))
    entry = source.producers.add(id=b"abcdef")
    entry.state.last_ack, entry.state.begin = 77, 850
    found.sources["b/other"].read_through = 5
    return found


def test_reset_keeps_what_was_committed_and_forgets_where() -> None:
    """A message that was counted must not be counted again if its producer repeats it in the new journal. Its pending
    messages were at offsets of the old one.
    """
    reset = checkpoint()
    assert not was_applied(RESET, reset)

    apply_reset(RESET, reset)

    source = reset.sources[JOURNAL]
    assert was_applied(RESET, reset)
    assert (source.read_through, source.epoch) == (0, EPOCH)
    assert [(each.state.last_ack, each.state.begin) for each in source.producers] == [(77, -1)]
    assert reset.sources["b/other"] == checkpoint().sources["b/other"]
    assert reset.ack_intents["out"] == b"ack"


@pytest.mark.parametrize(
    ("offset", "epoch", "present", "expected"),
    [
        (0, EPOCH, Present(50, NEW), True),
        (50, EPOCH, Present(50, NEW), True),
        (0, EPOCH, Present(50, NEWER), False),
        (60, EPOCH, Present(50, NEW), False),
        (0, EPOCH, Present(50, None), False),
        (40, None, Present(50, None), True),
        (60, None, Present(50, None), False),
    ],
    ids=[
        "of this journal",
        "at its head",
        "of one before it",
        "beyond its head",
        "its broker tells no identity any more",
        "Gazette's broker",
        "beyond the head of Gazette's broker",
    ],
)
def test_reset_fits_the_journal_it_was_asked_for(
    offset: int, epoch: JournalEpoch | None, present: Present, expected: bool
) -> None:
    """Consent to lose one journal's messages is no consent to lose another's."""
    reset = SourceReset(id=b"one", journal=JOURNAL, offset=offset, epoch=epoch)

    assert is_of(reset, present) is expected


def test_checkpoints_keep_epochs_and_resets() -> None:
    """The sequencer makes each checkpoint's sources from nothing: what it does not know must not be lost with them."""
    recovered = checkpoint()
    apply_reset(RESET, recovered)
    origins = SourceOrigins(recovered)
    origins.note("b/other", EPOCH)

    stamped = origins.stamped(
        {name: Checkpoint.Source(read_through=7) for name in (JOURNAL, "b/other", "c/third")}
    )

    assert [stamped[JOURNAL].epoch, stamped["b/other"].epoch] == [EPOCH, EPOCH]
    assert [source.reset for source in stamped.values()] == [b"one", b"", b""]
    assert not stamped["c/third"].HasField("epoch")


def test_replaced_source_is_tried_again_as_rarely_as_any() -> None:
    """It may be restored, so it is tried for ever; nothing is gained by trying often."""
    replaced = JournalReplacedError(
        JOURNAL, offset=9, write_head=3, read_epoch="unknown", present_epoch="unknown"
    )
    error = SourceReplacedError("shard-1", replaced)
    error.__cause__ = replaced
    supervision = Supervision(RestartPolicy(delay_seconds=0.5, delay_seconds_max=30.0))

    verdicts = [supervision.on_failure(AttemptFailure(failure_kind(error))) for _ in range(20)]

    assert {verdict.kind for verdict in verdicts} == {FailureKind.REPLACED}
    assert {verdict.delay_seconds for verdict in verdicts} == {30.0}
    assert not any(verdict.quarantined for verdict in verdicts)
