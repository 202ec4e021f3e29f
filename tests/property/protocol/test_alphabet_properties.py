"""The quick check of names, beside the rule in words."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import PATH_SYMBOLS, TOKEN_SYMBOLS, validate_alphabet

texts = st.text(alphabet=st.sampled_from("aZ9-_+/.=% \nä½٣é\x00"), max_size=8)


@given(texts, st.sampled_from((TOKEN_SYMBOLS, PATH_SYMBOLS, "-")))
@example("ab\n", TOKEN_SYMBOLS)
@example("a_b", "-")
def test_names_have_letters_numbers_and_symbols_and_a_length_in_bytes(
    text: str, symbols: str
) -> None:
    """Whatever their characters, ASCII or not, names are judged by one rule."""
    is_good = all(each.isalnum() or each in symbols for each in text)
    is_good = is_good and 2 <= len(text.encode()) <= 6

    if is_good:
        validate_alphabet(text, "name", symbols=symbols, bytes_range=(2, 6))
    else:
        with pytest.raises(ValidationError, match=r"^name: expected "):
            validate_alphabet(text, "name", symbols=symbols, bytes_range=(2, 6))
