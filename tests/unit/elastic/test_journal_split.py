"""Divisions of journals: plans, the sources of readers, and what an apply may make of them."""

from __future__ import annotations

import pytest

from broadsheet.consumer.elastic.journal_split import (
    JournalSplitPhase,
    JournalSplitRecord,
    check_parts_kept,
    decode_journal_split,
    encode_journal_split,
    left_behind,
    part_spec,
    plan_journal_split,
    publishers_among,
    read_before,
    with_labels,
    with_parts,
    with_unread,
    without_sealed,
)
from broadsheet.journals.message.division import sealed_at
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import KeyRange, key_range_of
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    KEY_BEGIN,
    KEY_END,
    PUBLISHERS,
    PUBLISHERS_CHECKED,
    SEALED_AT,
    SPLIT_EPOCH,
    SPLIT_OF,
    label_set,
    value_of,
)
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec

JOURNAL = "shop/orders"
PARTS = [f"{JOURNAL}-0000", f"{JOURNAL}-0800"]


def _journal(*labels: tuple[str, str]) -> JournalSpec:
    given = label_set(
        (CONTENT_TYPE, "application/x-ndjson"), (PUBLISHERS, PUBLISHERS_CHECKED), *labels
    )
    return JournalSpec(name=JOURNAL, replication=1, labels=given)


def _shard(*sources: str, shard_id: str = "shard-a") -> ShardSpec:
    spec = ShardSpec(id=shard_id, sources=[ShardSpec.Source(journal=each) for each in sources])
    spec.max_txn_duration.FromMilliseconds(100)
    return spec


def test_plan_without_a_group_cuts_in_the_middle_and_names_the_readers() -> None:
    """A reader is each shard that has the journal among its sources, also with a suffix of its own."""
    shards = [
        _shard(JOURNAL),
        _shard("shop/others", shard_id="shard-b"),
        _shard(f"{JOURNAL};two", shard_id="shard-c"),
    ]

    plan = plan_journal_split(_journal(), None, shards=shards)

    assert [(each.journal, each.owned) for each in plan.parts] == [
        (PARTS[0], KeyRange(0, 0x800)),
        (PARTS[1], KeyRange(0x800, 0x1000)),
    ]
    assert plan.readers == ("shard-a", "shard-c")


def test_plan_of_a_part_divides_its_own_range() -> None:
    """A part owns a range; what comes of it owns parts of that."""
    part = _journal((SPLIT_OF, "shop/all"), (KEY_BEGIN, "0800"), (KEY_END, "1000"))

    plan = plan_journal_split(part, 0x900, shards=[])

    assert [each.owned for each in plan.parts] == [KeyRange(0x800, 0x900), KeyRange(0x900, 0x1000)]


@pytest.mark.parametrize(
    ("journal", "at_group", "why"),
    [
        (JournalSpec(name=JOURNAL, labels=label_set((CONTENT_TYPE, "text/csv"))), None, "checked"),
        (JournalSpec(name=JOURNAL), None, "messages with keys"),
        (_journal((SPLIT_EPOCH, "1")), None, "divided already"),
        (_journal((KEY_BEGIN, "0010"), (KEY_END, "0011")), None, "cannot be divided"),
        (_journal((KEY_END, "0800")), 0x900, "inside of 0000-0800"),
    ],
)
def test_plan_that_cannot_be_carried_out_is_refused_with_the_reason(
    journal: JournalSpec, at_group: int | None, why: str
) -> None:
    """Nothing begins that would lose a key's order, or divide nothing."""
    with pytest.raises(ValidationError, match=why):
        plan_journal_split(journal, at_group, shards=[])


def test_spec_of_a_part_has_the_journals_labels_but_for_its_end() -> None:
    """The leader may make the part when the journal is labelled as divided: the part is not."""
    divided = with_labels(_journal(("team", "shop")), (SPLIT_EPOCH, "1"), (SEALED_AT, "12"))
    plan = plan_journal_split(_journal(), None, shards=[])

    made = part_spec(divided, plan.parts[1])

    assert (made.name, value_of(made.labels, SPLIT_OF)) == (PARTS[1], JOURNAL)
    assert key_range_of(made.labels) == KeyRange(0x800, 0x1000)
    assert value_of(made.labels, "team") == "shop"
    assert sealed_at(made) is None
    assert not value_of(made.labels, SPLIT_EPOCH)
    assert sealed_at(divided) == 12


def test_reader_gets_the_parts_behind_the_journal_once() -> None:
    """Sources ascend by name, and a second round changes nothing."""
    before = _shard("shop/a", JOURNAL, "shop/z")

    after = with_parts(before, JOURNAL, PARTS)

    assert after is not None
    validate_shard_spec(after)
    assert [(each.journal, each.after) for each in after.sources] == [
        ("shop/a", ""),
        (JOURNAL, ""),
        (PARTS[0], JOURNAL),
        (PARTS[1], JOURNAL),
        ("shop/z", ""),
    ]
    assert with_parts(after, JOURNAL, PARTS) is None
    assert with_parts(_shard("shop/a"), JOURNAL, PARTS) is None


def test_reader_with_a_suffix_reads_the_parts_with_the_suffix() -> None:
    """A suffix tells sources of one journal apart, in checkpoints."""
    after = with_parts(_shard(f"{JOURNAL};two"), JOURNAL, PARTS)

    assert after is not None
    assert [(each.journal, each.after) for each in after.sources if each.after] == [
        (f"{part};two", f"{JOURNAL};two") for part in PARTS
    ]


def test_source_behind_no_source_of_the_shard_is_refused() -> None:
    """It would wait for ever; so would two that wait for each other."""
    alone = _shard(PARTS[0])
    alone.sources[0].after = JOURNAL
    with pytest.raises(ValidationError, match="after"):
        validate_shard_spec(alone)

    ring = _shard("shop/a", "shop/b")
    ring.sources[0].after, ring.sources[1].after = "shop/b", "shop/a"
    with pytest.raises(ValidationError, match="waits for none of its own parts"):
        validate_shard_spec(ring)


def test_reader_that_has_read_the_journal_keeps_only_its_parts_and_where_the_seal_is() -> None:
    """Also with a suffix; and what was taken out comes back for a shard that recovers from before the seal."""
    for suffix in ("", ";two"):
        held = with_parts(_shard("shop/a", f"{JOURNAL}{suffix}"), JOURNAL, PARTS)
        assert held is not None
        assert left_behind(held) == {}

        ended = without_sealed(held, JOURNAL, 77)

        validate_shard_spec(ended)
        assert [(each.journal, each.after, each.after_offset) for each in ended.sources] == [
            ("shop/a", "", 0),
            *((f"{part}{suffix}", f"{JOURNAL}{suffix}", 77) for part in PARTS),
        ]
        assert left_behind(ended) == {f"{JOURNAL}{suffix}": 77}
        assert with_unread(ended, {f"{JOURNAL}{suffix}": ""}) == held


def test_part_that_is_left_behind_in_turn_comes_back_behind_its_own_journal() -> None:
    """A part was divided, too, and neither it nor the first journal is a source any more."""
    held = with_parts(_shard(JOURNAL), JOURNAL, PARTS[:1])
    assert held is not None
    parts = [f"{PARTS[0]}-0000", f"{PARTS[0]}-0400"]
    both = with_parts(without_sealed(held, JOURNAL, 77), PARTS[0], parts)
    assert both is not None
    ended = without_sealed(both, PARTS[0], 88)
    assert left_behind(ended) == {PARTS[0]: 88}

    again = with_unread(ended, {PARTS[0]: JOURNAL, JOURNAL: ""})

    validate_shard_spec(again)
    assert [(each.journal, each.after, each.after_offset) for each in again.sources] == [
        (JOURNAL, "", 0),
        (PARTS[0], JOURNAL, 0),
        *((part, PARTS[0], 0) for part in parts),
    ]


def test_part_that_was_divided_leaves_the_sources_behind_its_own_journal() -> None:
    """Else the journal, which goes on giving its parts to readers, would give them this one again; and no source would
    tell any more that the journal is read first.
    """
    for suffix in ("", ";two"):
        held = with_parts(_shard(f"{JOURNAL}{suffix}"), JOURNAL, PARTS)
        assert held is not None
        both = with_parts(held, PARTS[0], [f"{PARTS[0]}-0000", f"{PARTS[0]}-0400"])
        assert both is not None

        assert read_before(both, PARTS[0]) == f"{JOURNAL}{suffix}"
        assert read_before(both, JOURNAL) == ""
        assert read_before(without_sealed(both, JOURNAL, 77), PARTS[0]) == ""


@pytest.mark.parametrize(("after", "offset"), [("", 5), (JOURNAL, -1)])
def test_offset_of_a_seal_without_a_journal_before_it_is_refused(after: str, offset: int) -> None:
    """It says through where the divided journal is read."""
    spec = _shard(PARTS[0])
    spec.sources[0].after, spec.sources[0].after_offset = after, offset

    with pytest.raises(ValidationError, match="after_offset"):
        validate_shard_spec(spec)


def test_change_of_a_reader_keeps_the_parts_as_long_as_it_reads_the_journal() -> None:
    """Without the parts no shard would read their messages; without the journal there is no order to keep."""
    held = with_parts(_shard(JOURNAL), JOURNAL, PARTS)
    assert held is not None
    early = ShardSpec()
    early.CopyFrom(held)
    early.sources[1].after = ""

    for broken in (_shard(JOURNAL), early):
        with pytest.raises(ValidationError, match=f"expected {PARTS[0]}"):
            check_parts_kept(held, broken)
    check_parts_kept(held, held)
    check_parts_kept(held, _shard(*PARTS))


def test_publishers_are_the_shards_with_records_for_the_journal() -> None:
    """Keys are shard, producer and journal; names of journals may begin alike."""
    keys = [
        b"/r/shard-a#00000000000a#shop/orders",
        b"/r/shard-a#00000000000b#shop/orders",
        b"/r/shard-b#00000000000c#shop/orders-0000",
    ]

    assert publishers_among(keys, b"/r/", JOURNAL) == ["shard-a"]


def test_record_survives_its_encoding_and_its_phase_never_falls_back() -> None:
    """A second leader begins with the first step, and must not tell that all of it begins again."""
    record = plan_journal_split(_journal(), None, shards=[]).record
    draining = record.noted(JournalSplitPhase.DRAINING, "a transaction is open")

    assert decode_journal_split(encode_journal_split(draining)) == draining
    assert draining.noted(JournalSplitPhase.LEAVING, "") == JournalSplitRecord(
        parts=record.parts, phase=JournalSplitPhase.DRAINING
    )
