"""Documents as tests: a block that says that a command is refused must prove it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.documents import UnprovenRefusalError, blocks_of

_REFUSED = """
<!-- run -->
```sh
echo allowed
! {command}
```
"""
_SHOWN = """
<!-- shows -->
```text
refused
```
"""


def _document(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_refusal_without_the_line_that_it_shows_is_no_proof(tmp_path: Path) -> None:
    """`! command` is true of a misspelt command, too: the page must show why it is refused."""
    page = _document(tmp_path, _REFUSED.format(command="no-such-command"))

    with pytest.raises(UnprovenRefusalError, match="'no-such-command' may fail for any reason"):
        blocks_of(page)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("sh -c 'echo refused; exit 3'", 0),
        ("echo refused", 1),
        ("sh -c \\\n  'echo refused; exit 3'", 0),
        ("echo \\\n  refused", 1),
    ],
    ids=["refused", "allowed", "refused on two lines", "allowed on two lines"],
)
def test_command_that_is_not_refused_ends_its_script(
    command: str, status: int, tmp_path: Path
) -> None:
    """A shell goes on after `! command` whatever it did, also under `set -e`: the script that is run does not."""
    (block,) = blocks_of(_document(tmp_path, _REFUSED.format(command=command) + _SHOWN))

    ran = subprocess.run(["sh", "-euc", f"{block.script}\n:"], capture_output=True, check=False)

    assert (ran.returncode, ran.stdout) == (status, b"allowed\nrefused\n")
