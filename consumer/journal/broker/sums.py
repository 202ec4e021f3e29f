"""SHA-1 digests on the wire: three integers, read big-endian from the digest.

Source: gazette/core broker/protocol/fragment_extensions.go (SHA1SumFromDigest).
"""

from __future__ import annotations

import struct

from consumer.protocol.journal_pb2 import SHA1Sum

_PARTS = struct.Struct(">QQI")


def sha1_sum(digest: bytes) -> SHA1Sum:
    """Return the wire form of a 20-byte digest."""
    part1, part2, part3 = _PARTS.unpack(digest)
    return SHA1Sum(part1=part1, part2=part2, part3=part3)
