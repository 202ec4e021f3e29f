"""What strangers send: bytes that no client of ours sends, in a table."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from tests.support.raw_http2 import (
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call_headers,
    frame,
)

CONTINUATION: Final = 9
BEGUN: Final = PREFACE + frame(SETTINGS)
LIST: Final = b"/consumer.Shard/List"
HEALTH: Final = b"/grpc.health.v1.Health/Check"
EMPTY_MESSAGE: Final = frame(DATA, b"\x00\x00\x00\x00\x00", flags=1, stream=1)


def _call(path: bytes, *extra: tuple[bytes, bytes], stream: int = 1) -> bytes:
    return frame(HEADERS, call_headers(path, extra), flags=END_HEADERS, stream=stream)


def _calls(count: int, after: bytes = b"") -> bytes:
    """Return the beginnings of calls, each followed by a frame of its stream if `after` is its code."""
    return b"".join(
        _call(HEALTH, stream=1 + 2 * each)
        + (frame(RST_STREAM, after, stream=1 + 2 * each) if after else b"")
        for each in range(count)
    )


def _number(value: int) -> bytes:
    return struct.pack(">I", value)


HTTP2: Final[Mapping[str, bytes]] = {
    "path that is no text": BEGUN + _call(b"/\xff"),
    "path without a slash": BEGUN + _call(b"*"),
    "path of NUL": BEGUN + _call(b"/a\x00b"),
    "token that is no text": BEGUN
    + _call(LIST, (b"authorization", b"Bearer \xff\xfe"))
    + EMPTY_MESSAGE,
    "token of three dots": BEGUN + _call(LIST, (b"authorization", b"Bearer ...")) + EMPTY_MESSAGE,
    "timeout that is none": BEGUN + _call(LIST, (b"grpc-timeout", b"99999999999H")) + EMPTY_MESSAGE,
    "encoding that is none": BEGUN + _call(LIST, (b"grpc-encoding", b"\xff")) + EMPTY_MESSAGE,
    "message longer than its frame": BEGUN
    + _call(LIST)
    + frame(DATA, b"\x00\xff\xff\xff\xff", flags=1, stream=1),
    "message that is none": BEGUN
    + _call(LIST)
    + frame(DATA, b"\x00\x00\x00\x00\x04\xff\xff\xff\xff", flags=1, stream=1),
    "headers that are no headers": BEGUN
    + frame(HEADERS, b"\xff" * 64, flags=END_HEADERS, stream=1),
    "headers without end": BEGUN
    + frame(HEADERS, call_headers(LIST), stream=1)
    + frame(CONTINUATION, b"\x00\x01a\x7f" + b"a" * 127, stream=1) * 600,
    "empty continuations": BEGUN
    + frame(HEADERS, call_headers(LIST), stream=1)
    + frame(CONTINUATION, stream=1) * 5_000,
    "calls without a message": BEGUN + _calls(1_000),
    "resets": BEGUN + _calls(1_000, _number(8)),
    "pings": BEGUN + frame(PING, b"12345678") * 5_000,
    "settings": BEGUN + frame(SETTINGS, struct.pack(">HI", 3, 1)) * 3_000,
    "setting of the table": BEGUN + frame(SETTINGS, struct.pack(">HI", 1, 0xFFFFFFFF)),
    "window of nothing": BEGUN
    + frame(SETTINGS, struct.pack(">HI", 4, 0))
    + _call(HEALTH)
    + EMPTY_MESSAGE,
    "window that grows by nothing": BEGUN + frame(WINDOW_UPDATE, _number(0)),
    "window that overflows": BEGUN + frame(WINDOW_UPDATE, _number(0x7FFFFFFF)) * 2,
    "data of no stream": BEGUN + frame(DATA, b"x" * 100),
    "data of a stream that is not open": BEGUN + frame(DATA, b"x" * 100, stream=99),
    "frame without end": BEGUN + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 4_096,
    "frame of no kind": BEGUN + frame(0xEE, b"x" * 64, flags=0xFF, stream=7) * 200,
    "stream that depends on itself": BEGUN + frame(2, _number(1) + b"\x10", stream=1),
    "even stream": BEGUN + _call(HEALTH, stream=2),
    "farewell at once": BEGUN + frame(GOAWAY, _number(0) + _number(0)) + _call(HEALTH),
    "preface that is wrong": PREFACE[:-4] + b"xxxx",
}
_TO_APPLY: Final = b"POST /v1/shards/apply HTTP/1.1\r\nHost: localhost\r\n"
HTTP1: Final[Mapping[str, bytes]] = {
    "no request line": b"GET\r\n\r\n",
    "bytes without a line": b"\x00" * 4_096,
    "version that is none": b"GET /livez HTTP/9.9\r\n\r\n",
    "path that is no text": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "path of dots": b"GET /page/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "path without end": b"GET /" + b"a" * 100_000,
    "many headers": b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
    "header without end": b"GET /livez HTTP/1.1\r\nA: " + b"a" * 600_000,
    "token that is no text": b"GET /debug/vars HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    "scheme that is none": b"GET /debug/vars HTTP/1.1\r\nHost: localhost\r\nAuthorization: \x01\r\n\r\n",
    "host that is none": b"GET /debug/vars HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "two lengths of a body": _TO_APPLY
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /debug/vars HTTP/1.1\r\n\r\n",
    "two different lengths": _TO_APPLY + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "length below zero": _TO_APPLY + b"Content-Length: -1\r\n\r\n",
    "length beyond all": _TO_APPLY + b"Content-Length: 99999999999999999999\r\n\r\n",
    "chunk without a length": _TO_APPLY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "service that is no text": b"GET /readyz?service=shard/%ff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "upgrade to another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
}
TLS: Final[Mapping[str, bytes]] = {
    "greeting of nothing": b"\x16\x03\x01\x00\x00",
    "greeting that is none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 508,
    "half a greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 40,
    "record without end": b"\x16\x03\x01\xff\xff" + b"\xaa" * 4_096,
    "alert at once": b"\x15\x03\x01\x00\x02\x02\x28",
    "SSL 2": b"\x80\x2e\x01\x00\x02" + b"\x00" * 43,
}
ODDITIES: Final[Mapping[str, Mapping[str, bytes]]] = {"http2": HTTP2, "http1": HTTP1, "tls": TLS}
"""By protocol and name."""
