"""Hypothesis strategies for records of leases."""

from __future__ import annotations

from hypothesis import strategies as st

from broadsheet.leases.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from broadsheet.leases.record import HashRange, LeaseRecord

positions = st.builds(
    Position,
    st.integers(0, 2**186).map(str) | st.sampled_from([TRIM_HORIZON, LATEST, SHARD_END]),
    st.integers(0, 2**63 - 1),
    st.none() | st.text(max_size=5),
)
names = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=20)
records = st.builds(
    LeaseRecord,
    key=names,
    epoch=st.integers(0, 2**62),
    counter=st.integers(0, 2**62),
    owner=names,
    handoff_from=st.none() | names,
    claim=st.none() | names,
    checkpoint=st.none() | positions,
    pending=positions,
    pending_state=st.none() | st.binary(max_size=20),
    owner_switches=st.integers(0, 9),
    write_id=st.text(st.characters(codec="utf-8"), max_size=5),
    parents=st.frozensets(names, max_size=3),
    children=st.frozensets(names, max_size=3),
    hash_range=st.none() | st.builds(HashRange, first=names, last=names),
    attrs=st.dictionaries(st.sampled_from(["x", "zone"]), st.sampled_from(['"1"', "1", "[1]"])),
)
