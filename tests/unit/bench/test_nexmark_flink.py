"""Nexmark beside Flink, as far as it does without Flink."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bench.nexmark import beside_flink
from bench.nexmark.queries import QUERIES


def test_environment_without_flink_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison that is left out in silence would pass for one that was made."""
    assert not beside_flink.has_flink(sys.executable)
    assert "flink is left out" in capsys.readouterr().err


def test_each_query_is_there_in_flinks_words() -> None:
    """One that is missing would end the comparison when hours of it are over."""
    text = Path(beside_flink.__file__).with_name("flink_queries.sql").read_text()
    assert re.findall(r"^-- (\w+)$", text, re.MULTILINE) == [beside_flink.SOURCE, *QUERIES]
