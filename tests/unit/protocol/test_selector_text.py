"""Selectors as text: the grammar, and what is refused."""

from __future__ import annotations

import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import format_selector, parse_selector


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  ", ""),
        ("foo=bar", "foo=bar"),
        ("foo = bar", "foo=bar"),
        ("foo == bar", "foo=bar"),
        ("foo != bar", "foo!=bar"),
        ("foo", "foo"),
        ("! foo", "!foo"),
        ("foo in (b1, a1)", "foo in (a1,b1)"),
        ("foo notin(b1,a1)", "foo notin (a1,b1)"),
        ("foo not in (b1)", "foo!=b1"),
        ("zz=1, aa=2", "aa=2,zz=1"),
        ("name:prefix=foo/", "name:prefix=foo/"),
        ("foo=a=b%20", "foo=a=b%20"),
        ("app.gazette.dev/region=us", "app.gazette.dev/region=us"),
        ("notin=1,!in", "notin=1,!in"),
        ("größe=über", "größe=über"),
    ],
)
def test_parse_then_format_gives_the_canonical_text(text: str, canonical: str) -> None:
    """Every form of a term is read, and there is one way to write each selector."""
    assert format_selector(parse_selector(text)) == canonical


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("foo=bar,", "character 8"),
        ("=bar", "'=bar'"),
        ("x=1", "'x=1'"),
        ("foo=b r", "'foo=b r'"),
        ("foo in (a1", "'foo in (a1'"),
        ("!foo=bar", "'!foo=bar'"),
        ("foo=bar,foo=bar", "selector.include.labels[1]"),
        ("foo,foo=bar", "selector.include.labels[1]"),
        ("foo in (a$b)", "selector.include.labels[0].value"),
    ],
)
def test_parse_outside_the_grammar_names_the_place(text: str, told: str) -> None:
    """A user who mistypes a selector is told where, and what the grammar is."""
    with pytest.raises(ValidationError) as raised:
        parse_selector(text)

    assert told in str(raised.value)
