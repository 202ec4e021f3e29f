"""The examples' clients by key, as processes that are given keys and answer each with a line of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import DEADLINE_SECONDS

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"


class KeyClient:
    """A client that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, key: str) -> dict[str, Any]:  # `Any`: JSON
        """Return its answer for a key."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{key}\n".encode())
        async with asyncio.timeout(DEADLINE_SECONDS):
            line = await self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def key_client(command: Sequence[str], *, directory: Path) -> AsyncIterator[KeyClient]:
    """Start a client; it ends with its input."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=directory
    )
    try:
        yield KeyClient(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def primaries_of(client: KeyClient, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the shard and the primary that each key's answer came from."""
    answers = [await client.ask(key) for key in keys]
    assert all(answer["readThrough"] is not None for answer in answers)
    return {answer["key"]: (answer["shard"], answer["primary"]) for answer in answers}
