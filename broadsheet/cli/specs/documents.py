"""Files of specs as the changes that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from broadsheet.cli.output.progress import say_reading
from broadsheet.cli.specs.files import require_distinct, specs_files
from broadsheet.cli.specs.kind import Change, Document, Kind, SpecT
from broadsheet.cli.text_files import read_text


def read_document(kind: Kind[SpecT], path: Path, *, option: str) -> Document[SpecT]:
    """Read a file, or standard input.

    Raises:
        ValidationError: it cannot be read, or is wrong.
    """
    text, source = read_text(path, option=option)
    say_reading(source, text)
    return Document(source, kind.read(text, source))


def read_documents(kind: Kind[SpecT], paths: Sequence[Path]) -> list[Document[SpecT]]:
    """Read files, directories and standard input.

    Raises:
        ValidationError: one cannot be read, is wrong, or declares what another declares.
    """
    documents = [read_document(kind, path, option="--filename") for path in specs_files(paths)]
    names = [change.name for document in documents for change in document.changes]
    places = [f"{each.source}: {change.place}" for each in documents for change in each.changes]
    require_distinct("--filename", names, places)
    return documents


def changes_in(documents: Sequence[Document[SpecT]]) -> list[Change[SpecT]]:
    """Return the changes of all documents."""
    return [*chain.from_iterable(document.changes for document in documents)]
