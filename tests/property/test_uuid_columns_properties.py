"""UUIDs parsed together are what they are one by one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from broadsheet.journals.message.uuid import FEW, FLAGS_MAX, build_uuid, parse_uuid, parse_uuids

published = st.builds(
    build_uuid,
    st.integers(0, (1 << 48) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, FLAGS_MAX),
)
uuids = st.one_of(published, st.binary(min_size=16, max_size=16), st.just(bytes(16)))


@given(drawn=st.lists(uuids, max_size=8), repeats=st.sampled_from([1, FEW]))
def test_columns_of_many_are_those_of_each(drawn: list[bytes], repeats: int) -> None:
    """Plan: ours, nil ones and any bytes, few and many. Why: many are parsed in another way."""
    together = parse_uuids(b"".join(drawn * repeats))

    expected = [parse_uuid(each) for each in drawn * repeats]
    assert [*zip(*(column.tolist() for column in together), strict=True)] == expected
