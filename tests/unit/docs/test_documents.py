"""What the documents name must be there: links, headings, files, make targets, commands, Python names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from broadsheet.cli.main import main
from tests.support.documents import REPOSITORY, blocks_of

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"[\w.-]*(?:/[\w.-]+)*(?:/|\.(?:py|md|proto|yaml|toml|sql|txt))")
_DOTTED = re.compile(r"(?:broadsheet|allocator|consumer|spark_bridge|examples)(?:\.\w+)+")
_GENERIC = {"core/", "message.proto", "spool/", ".proto", ".cache/", ".demo/", "state.json"}
"""Written like a path, but not one of this repository."""


def _documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [REPOSITORY / name for name in listed.stdout.split()]


each_document = pytest.mark.parametrize(
    "document", _documents(), ids=lambda path: str(path.relative_to(REPOSITORY))
)


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link leads to a file or a folder, and its fragment to a heading there."""
    for link in _LINK.findall(_FENCE.sub("", document.read_text())):
        if "://" in link:
            continue
        name, _, fragment = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{link} leads nowhere"
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if fragment else ()
        assert not fragment or fragment in map(_anchor, headings), f"{link}: no such heading"


@each_document
def test_paths_named_in_the_text_exist(document: Path) -> None:
    """A `path/like.this` is relative to the repository or to the document's folder."""
    for code in _CODE.findall(_FENCE.sub("", document.read_text())):
        if not _PATH.fullmatch(code) or code in _GENERIC:
            continue
        candidates = (REPOSITORY / code, document.parent / code)
        assert any(path.exists() for path in candidates), f"`{code}` does not exist"


@each_document
def test_python_names_in_the_text_exist(document: Path) -> None:
    """A `package.module.Name` is there: renames must reach the documents."""
    for code in _CODE.findall(_FENCE.sub("", document.read_text())):
        if _DOTTED.fullmatch(code) is None or (REPOSITORY / code).exists():
            continue
        assert _names_something(code), f"`{code}` does not exist"


@each_document
def test_commands_in_the_text_exist(document: Path) -> None:
    """Each `make target` and each `shardctl command` that a document names is there."""
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    for named in re.findall(r"(?:^|`)make ((?:[a-z][a-z-]+ ?)+)", text, re.MULTILINE):
        assert set(named.split()) <= targets, f"make {named}"
    for group, command in re.findall(r"shardctl (shards|journals) ([a-z]+(?:-[a-z]+)*)", text):
        context = click.Context(main)
        parent = main.get_command(context, group)
        assert isinstance(parent, click.Group)
        assert command in parent.list_commands(context), f"shardctl {group} {command}"


@each_document
def test_commands_that_are_refused_show_why(document: Path) -> None:
    """A block whose `! command` may fail for any reason proves nothing: `blocks_of` refuses it."""
    blocks_of(document)


def _names_something(dotted: str) -> bool:
    """Return whether this is a module, or a definition in one; read, not imported, for a package may need Spark."""
    parts = dotted.split(".")
    path = REPOSITORY.joinpath(*parts)
    ours = parts[0] == "broadsheet"  # Without it, only names of the wire are right.
    if ours and (path.is_dir() or path.with_suffix(".py").exists()):
        return True
    module = path.parent.with_suffix(".py")
    if ours and module.exists():
        return (
            re.search(rf"^(?:class|(?:async )?def) {parts[-1]}\b", module.read_text(), re.MULTILINE)
            is not None
        )
    package = path.parent / "__init__.py"
    if (
        ours
        and package.exists()
        and re.search(rf"\b{parts[-1]}\b", package.read_text().partition('"""\n\n')[2])
    ):
        return True
    # A service or message of the wire: its package is called as ours is.
    protos = "".join(path.read_text() for path in (REPOSITORY / "proto").rglob("*.proto"))
    if re.search(rf"^package {re.escape(dotted)};", protos, re.MULTILINE):
        return True
    return re.search(rf"^(?:service|message) {parts[-1]}\b", protos, re.MULTILINE) is not None
