"""A gRPC server whose process is held up as `argv[1]` says once a line comes in: by a call that keeps the interpreter
(`interpreter`), or on its event loop (`loop`). Prints its port first.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time

import grpc

HELD_SECONDS = 30
"""Longer than any test waits; it is killed before."""


async def main(kind: str) -> None:
    """Serve, then stand still."""
    server = grpc.aio.server()
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.readline)
    print("held up", flush=True)
    if kind == "interpreter":
        ctypes.PyDLL(None).sleep(
            HELD_SECONDS
        )  # Unlike CDLL, it does not let other threads run meanwhile.
    else:
        time.sleep(HELD_SECONDS)  # noqa: ASYNC251 - that is what is tried


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
