"""The table from keys to shards agrees with where publishers put keys, and with which shard owns them in state."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import xxhash
from google.protobuf import json_format

from broadsheet.consumer.elastic.key_table import RULE_NAMES, ServedShard, key_table_of
from broadsheet.journals.message.partitioning import RULES, MappedJournal
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import KeyRange, group_of, range_labels
from broadsheet.wire.keys_pb2 import KeyTable, KeyTableRange
from broadsheet.wire.labels import FAMILY, FORK_OF, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.node_tools import find_node_tools

CLIENT = Path(__file__).parents[3] / "examples" / "clients" / "js"
KEYS = ["", "a", "N101", "N102", "ключ", "a\0b", "k" * 9, "k" * 30, "k" * 100, "k" * 150, "k" * 230]


def _shard(
    shard_id: str, *journals: str, owned: KeyRange | None = None, fork: str = ""
) -> ServedShard:
    spec = ShardSpec(id=shard_id, sources=[ShardSpec.Source(journal=each) for each in journals])
    labels = [*range_labels(owned or KeyRange())]
    if fork:
        labels.append((FORK_OF, fork))
    spec.labels.CopyFrom(label_set((FAMILY, "family"), *labels))
    return ServedShard(spec=spec, primary=f"z#{shard_id}", admin_endpoint=f"http://{shard_id}")


def _found(ranges: list[KeyTableRange], journal: int, group: int) -> str:
    (shard,) = {
        each.shard for each in ranges if each.journal == journal and each.begin <= group < each.end
    }
    return shard


@pytest.mark.parametrize("rule", ["modulo", "rendezvous"])
def test_key_table_by_journal_leads_where_publishers_put_keys(rule: str) -> None:
    """The journals' order is that of publishers, and a reader's suffix is no part of a journal's name."""
    journals = [f"t/part-{number:03d}" for number in (2, 0, 1)]
    shards = [_shard(f"shard-{each[-3:]}", f"{each};reader") for each in journals]
    table = key_table_of(shards, RULE_NAMES[rule], journals)
    choices = tuple(MappedJournal(each, "") for each in journals)
    mapping = RULES[rule].mapping(lambda key: key, lambda: choices)

    found = _by_client(table)

    assert found == {key: f"shard-{mapping(key.encode()).journal[-3:]}" for key in KEYS}


def test_key_table_of_a_family_leads_where_the_state_of_a_key_is() -> None:
    """A fork that a split is making owns nothing, and an example's hash agrees with the library's for each length."""
    halves = (KeyRange(0, 0x800), KeyRange(0x800, 0x1000))
    shards = [
        _shard(f"shard-{index}", "t/a", "t/b", owned=each) for index, each in enumerate(halves)
    ]
    fork = _shard("shard-fork", "t/a", "t/b", owned=KeyRange(0xC00, 0x1000), fork="shard-1")

    table = key_table_of([*shards[::-1], fork], RULE_NAMES[""], ())
    found = _by_client(table)

    assert [(each.shard, each.begin, each.end) for each in table.ranges] == [
        ("shard-0", 0, 0x800),
        ("shard-1", 0x800, 0x1000),
    ]
    state = {key: b"\1" + key.encode().replace(b"\0", b"\0\xff") + b"\0\0" for key in KEYS}
    assert found == {key: _found(list(table.ranges), 0, group_of(state[key])) for key in KEYS}


def test_hash_of_the_example_is_xxh3_for_every_length() -> None:
    """Each length has a branch of its own up to 16, and loops of other numbers of steps above."""
    data = [bytes((i * 37 + n * 11) & 255 for i in range(n)) for n in range(241)]
    program = (
        "import { xxh3 } from './xxh3.mjs';"
        "for (const text of JSON.parse(process.argv[1])) console.log(String(xxh3(Buffer.from(text, 'hex'))));"
    )

    hashes = _node(program, json.dumps([each.hex() for each in data])).split()

    assert hashes == [str(xxhash.xxh3_64_intdigest(each)) for each in data]


@pytest.mark.parametrize(
    ("shards", "rule", "journals", "told"),
    [
        ([], "", (), r"^selector: expected shards that have keys"),
        ([_shard("s-1", "a"), _shard("s-2", "b")], "", (), r"^rule: expected modulo or rendezvous"),
        ([_shard("s-1", "a"), _shard("s-2", "a")], "modulo", (), r"^journals\[0\]: .*owned twice"),
        ([_shard("s-1", "a")], "modulo", ("a", "b"), r"^journals\[1\]: .* \(selected: no shard\)"),
        ([_shard("s-1", "a", owned=KeyRange(0, 9))], "", (), r"0009-1000 is owned by no shard"),
        ([_shard("s-1")], "modulo", (), r"^journals: expected at least one"),
    ],
)
def test_key_table_with_keys_of_no_shard_or_several_is_refused(
    shards: list[ServedShard], rule: str, journals: tuple[str, ...], told: str
) -> None:
    """A client that got such a table would ask the wrong shard, which answers as if the key were not there."""
    with pytest.raises(ValidationError, match=told):
        key_table_of(shards, RULE_NAMES[rule], journals)


def _by_client(table: KeyTable) -> dict[str, str]:
    """Return the shard of each key as the example finds it in the table that the gateway sends."""
    text = json_format.MessageToJson(table, always_print_fields_with_no_presence=True)
    program = (
        "import { rangeOf } from './table.mjs'; const [table, keys] = JSON.parse(process.argv[1]);"
        "console.log(JSON.stringify(keys.map((key) => rangeOf(JSON.parse(table), key).shard)));"
    )
    return dict(zip(KEYS, json.loads(_node(program, json.dumps([text, KEYS]))), strict=True))


def _node(program: str, argument: str) -> str:
    command = [str(find_node_tools().node), "--input-type=module", "-e", program, argument]
    done = subprocess.run(
        command, cwd=CLIENT, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_key_table_names_a_divided_journal_before_and_after_it_leaves_the_sources() -> None:
    """Publishers choose the journal and reach its parts behind that choice, also parts of parts."""
    spec = _shard("a", "j", "j-0000", "j-0000-0400", "j-0800", "k").spec
    for part, divided in (("j-0000", "j"), ("j-0800", "j"), ("j-0000-0400", "j-0000")):
        next(each for each in spec.sources if each.journal == part).after = divided
    without = ShardSpec()
    without.CopyFrom(spec)
    del without.sources[0]

    for each in (spec, without):
        assert list(key_table_of([ServedShard(spec=each)], RULE_NAMES[""], ()).journals) == [
            "j",
            "k",
        ]


def test_key_table_names_the_first_journal_when_a_part_was_divided_and_is_no_source_any_more() -> (
    None
):
    """Publishers choose among the journals of their topic: a part among them would send keys to other shards. A
    reader's suffix changes nothing.
    """
    for suffix in ("", ";two"):
        spec = _shard(
            "a", *(f"{each}{suffix}" for each in ("j-0000-0000", "j-0000-0400", "j-0800"))
        ).spec
        for source, divided in zip(spec.sources, ("j-0000", "j-0000", "j"), strict=True):
            source.after, source.after_offset = f"{divided}{suffix}", 9

        table = key_table_of(
            [ServedShard(spec=spec)],
            RULE_NAMES["modulo"],
            (),
            origins={
                "j-0000": "j",
                "j-0000-0000": "j-0000",
                "j-0000-0400": "j-0000",
                "j-0800": "j",
            },
        )

        assert list(table.journals) == ["j"]
