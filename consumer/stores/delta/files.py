"""Small files beside a Delta table, wherever it is stored."""

from __future__ import annotations

from collections.abc import Mapping

# The public handler passes Arrow's buffers on to code that takes bytes alone.
from deltalake._internal import DeltaFileSystemHandler


class TableFiles:
    """Files below the address of a table, by delta-rs' own access to its storage."""

    def __init__(self, table: str, storage_options: Mapping[str, str]) -> None:
        """Open nothing yet.

        Args:
            table: Its address.
            storage_options: Of delta-rs.
        """
        self._handler = DeltaFileSystemHandler(table, dict(storage_options))

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file."""
        stream = self._handler.open_output_stream(name)
        stream.write(content)
        stream.close()  # type: ignore[attr-defined]  # its stubs lack it

    def read(self, name: str) -> bytes:
        """Return a whole file.

        Raises:
            FileNotFoundError: there is none.
        """
        stream = self._handler.open_input_file(name)
        return stream.read(stream.size())

    def names(self, directory: str) -> list[str]:
        """Return the files of a directory, by their paths below the table."""
        found = self._handler.get_file_info_selector(directory, allow_not_found=True)
        return [each.path for each in found]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._handler.delete_file(name)
