"""Rows at a steady pace, to whatever takes them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.vs_structured_streaming.results import Pace, SentRow
from bench.vs_structured_streaming.rows import Row

_POLL_SECONDS = 0.05

Send: TypeAlias = "Callable[[Row], None]"
"""Takes a row at once, or soon: it does not wait for a result."""


class Trickle:
    """Sends rows 0, 1, 2 … at one pace after another, from a thread of its own."""

    def __init__(self, send: Send, paces: Sequence[Pace]) -> None:
        """Describe the rows; `start` begins with them."""
        self._send = send
        self._paces = paces
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self.sent: list[SentRow] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> int:
        """Wait until every row is sent; return how many."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return len(self.sent)

    def stop(self) -> int:
        """Send no more; return how many rows were sent."""
        self._stop.set()
        return self.join()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            for pace in self._paces:
                for _ in range(pace.rows):
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return
                    row = Row(len(self.sent))
                    self._send(row)
                    self.sent.append(SentRow(row, due))
                    due += 1.0 / pace.rows_per_second
        except BaseException as error:
            self._failure = error


class LineServer:
    """A TCP server that gives lines to whoever is connected; a context manager."""

    def __enter__(self) -> LineServer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    def wait_until_connected(self) -> None:
        """Wait until somebody listens."""
        while not self._connections:
            time.sleep(_POLL_SECONDS)

    def send(self, row: Row) -> None:
        """Send one row to everyone."""
        line = _line_of(row)
        for connection in self._connections:
            connection.sendall(line)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.append(connection)


class FileFeed:
    """Puts rows into files of a directory, several rows a file, each file at once."""

    def __init__(self, directory: Path, staging: Path, *, rows_per_file: int) -> None:
        """Begin with no rows; both directories are on one disk."""
        self._directory = directory
        self._staging = staging
        self._rows_per_file = rows_per_file
        self._rows: list[Row] = []
        self._files = 0
        self._staged: list[Path] = []

    def send(self, row: Row) -> None:
        """Add a row; write the file if it is full."""
        self._rows.append(row)
        if len(self._rows) >= self._rows_per_file:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are left."""
        if self._rows:
            self.stage([b"".join(map(_line_of, self._rows))])
            self.publish()
            self._rows = []

    def stage(self, contents: Iterable[bytes]) -> None:
        """Write files of lines, which nobody sees yet."""
        for content in contents:
            staged = self._staging / f"rows-{self._files:06d}.json"
            self._files += 1
            staged.write_bytes(content)
            self._staged.append(staged)

    def publish(self) -> None:
        """Make what is staged appear."""
        for staged in self._staged:
            staged.rename(self._directory / staged.name)
        self._staged.clear()


def _line_of(row: Row) -> bytes:
    return msgspec.json.encode(row.as_message()) + b"\n"
