"""A notebook's kernel, which runs cells as Jupyter does: in a running event loop, with its streams shown in cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.manager import start_new_kernel

CELL_SECONDS_MAX = 240.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a notebook shows below a cell."""

    streams: str = ""
    """What the kernel's process, and its children, wrote while the cell ran."""
    html: str = ""
    """The value of the last line, as a table."""
    texts: list[str] = field(default_factory=list)
    """The value of the last line, as text."""


class Notebook:
    """A kernel that runs cells; its errors are the test's."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, cell: str) -> Shown:
        """Run a cell and return what is shown of it."""
        streams, html, texts = [], [], []

        def hear(message: Mapping[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                streams.append(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                html.append(content["data"].get("text/html", ""))
                texts.append(content["data"].get("text/plain", ""))

        reply = self._client.execute_interactive(
            cell, timeout=CELL_SECONDS_MAX, output_hook=hear, allow_stdin=False
        )
        content = reply["content"]
        assert content["status"] == "ok", "\n".join(content.get("traceback", [])) + "".join(streams)
        return Shown("".join(streams), "".join(html), texts)


@contextmanager
def notebook(env: Mapping[str, str], *, directory: str) -> Iterator[Notebook]:
    """Run a kernel of this Python.

    Args:
        env: Its whole environment.
        directory: Its working directory.
    """
    manager, client = start_new_kernel(kernel_name="python3", env=dict(env), cwd=directory)
    try:
        yield Notebook(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
