"""HTTP/2 frames written by hand, for what no gRPC client sends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS = 1, 4
ACK = 1


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header that is neither indexed nor Huffman-coded (RFC 7541, 6.2.2); both below 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the headers of a gRPC call."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]
    return b"".join(literal(name, value) for name, value in fields)


@dataclass
class RawConnection:
    """A connection whose frames are written as they are given; what comes back is read and dropped, or counted."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *frames: bytes) -> None:
        """Send frames."""
        self.writer.writelines(frames)
        await self.writer.drain()

    async def frames(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield what comes back, as (kind, stream, payload), until the connection ends."""
        try:
            while True:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3]))
                yield head[3], int.from_bytes(head[5:]) & 0x7FFFFFFF, payload
        except (asyncio.IncompleteReadError, ConnectionError):
            return


@asynccontextmanager
async def raw_connection(port: int, *, host: str = "127.0.0.1") -> AsyncIterator[RawConnection]:
    """Connect, and send the preface and empty settings."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        connection = RawConnection(reader, writer)
        await connection.send(PREFACE, frame(SETTINGS))
        yield connection
    finally:
        writer.close()
