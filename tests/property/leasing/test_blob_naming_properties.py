"""Keys in the names of blobs."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from broadsheet.leases.stores.azure.container import decoded, encoded, header_value

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.parametrize("lower", [False, True])
@given(key=KEYS)
def test_key_survives_its_name(key: str, lower: bool) -> None:
    """Every key has a name of its own, in which no slash and no dot can be read as a path, nor an end as a query."""
    name = encoded(key, lower=lower)

    assert decoded(name) == key
    assert not set(name) & set("/\\.?#\0\x7f")
    assert name.isprintable()
    if lower:
        ascii_letters = [char for char in name.replace("%", "") if char.isascii()]
        assert "%" in name or ascii_letters == [char.lower() for char in ascii_letters]


@given(key=KEYS)
def test_text_survives_a_header(key: str) -> None:
    """Headers hold no other scripts, no ends of lines, and no blanks at their ends."""
    value = header_value(key)

    assert value.isascii()
    assert value.isprintable()
    assert " " not in value
    assert decoded(value) == key
