"""Which shards use a journal, and how a refusal names them."""

from __future__ import annotations

from broadsheet.cli.journals.users import JournalUser, Use, describe_users, uses_of
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import ShardSpec


def test_every_journal_that_a_spec_names_is_used() -> None:
    """A journal that is deleted takes input, state or left-out messages of its shards with it, also of paused ones."""
    spec = ShardSpec(
        id="a/1",
        sources=[
            ShardSpec.Source(journal="in/1"),
            ShardSpec.Source(journal="in/2;one"),
            ShardSpec.Source(journal="in/2;two"),
        ],
        recovery_log_prefix="logs",
        hint_prefix="/hints",
        labels=label_set((DEAD_LETTER_JOURNAL, "left/out")),
        disable=True,
    )

    assert [*uses_of(spec)] == [
        JournalUser("in/1", "a/1", Use.SOURCE),
        JournalUser("in/2", "a/1", Use.SOURCE),
        JournalUser("logs/a/1", "a/1", Use.RECOVERY_LOG),
        JournalUser("left/out", "a/1", Use.DEAD_LETTERS),
    ]


def test_refusal_names_some_shards_and_counts_the_rest() -> None:
    """Ten thousand shards that read one journal are no line."""
    users = [JournalUser("in", f"s{number}", Use.SOURCE) for number in range(8)]

    text = describe_users([*users, JournalUser("log", "s0", Use.RECOVERY_LOG)])

    assert text.startswith("in is in use: s0 reads it, s1 reads it, ")
    assert text.endswith("s4 reads it and 3 more; log is in use: s0 records into it")
