"""The breaking-change check guards what its baseline knows."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

PROTO = Path(__file__).parents[3] / "proto"


def test_every_proto_file_is_in_the_baseline() -> None:
    """A file that was added and never accepted could change in any way unnoticed: `make proto-accept` was forgotten."""
    baseline = FileDescriptorSet.FromString((PROTO / "released.binpb").read_bytes())

    files = {path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto")}

    missing = files - {file.name for file in baseline.file}
    assert not missing, "make proto-accept"
