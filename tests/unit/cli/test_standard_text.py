"""Specs on standard input and lists on standard output, under locales that are not UTF-8."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from broadsheet.cli.main import main
from broadsheet.cli.text_files import read_text
from broadsheet.runtime.errors import ValidationError


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_specs_on_standard_input_are_utf8_under_any_locale(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latin-1 reads any bytes, so a label changed in silence; ASCII refused text that the same file may have."""
    content = io.BytesIO("value: Zürich\r\nnext: é\n".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content, encoding=encoding))

    assert read_text(Path("-")) == ("value: Zürich\nnext: é\n", "standard input")


def test_standard_input_that_is_no_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in Latin-1 is an error by name, not another text."""
    content = io.BytesIO("Zürich".encode("latin-1"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content, encoding="latin-1"))

    with pytest.raises(ValidationError, match="standard input is not UTF-8 text"):
        read_text(Path("-"))


@pytest.mark.parametrize("charset", ["latin-1", "ascii"])
def test_output_to_a_pipe_is_utf8_under_any_locale(
    charset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command lists can be given to the next one, which reads UTF-8."""
    config = tmp_path / "config.yaml"
    config.write_text("contexts: {zürich: {address: 'http://a:1'}}", encoding="utf-8")
    monkeypatch.setenv("BROADSHEET_CONFIG", str(config))

    listed = CliRunner(charset=charset).invoke(main, ["contexts", "list"])

    assert listed.exit_code == 0, listed
    assert "zürich".encode() in listed.stdout_bytes


def test_user_without_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as user ids that no table names: every command looked for contexts, and ended in a traceback."""
    for name in ("HOME", "XDG_CONFIG_HOME", "BROADSHEET_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)

    listed = CliRunner().invoke(
        main, ["shards", "apply", "-f", "absent.yaml", "--address", "http://127.0.0.1:1"]
    )
    contexts = CliRunner().invoke(main, ["contexts", "list"])

    assert "absent.yaml" in listed.stderr
    assert "home directory" not in str(listed.exception)
    assert contexts.exit_code == 0, contexts
