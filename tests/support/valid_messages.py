"""Messages of the journal service that break no rule, and what breaks one of their fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.labels import label_set


def journal_spec() -> pb.JournalSpec:
    """A spec that breaks no rule."""
    return pb.JournalSpec(
        name="flights/part-000",
        replication=1,
        labels=label_set({"content-type": "application/x-ndjson", "app": "flights"}),
        fragment=pb.JournalSpec.Fragment(
            length=1 << 20,
            compression_codec=pb.NONE,
            stores=["s3://bucket/path/", "file:///local/"],
            refresh_interval=Duration(seconds=60),
            flush_interval=Duration(seconds=60),
        ),
    )


def header() -> pb.Header:
    """A header that breaks no rule."""
    return pb.Header(
        process_id=pb.ProcessSpec.ID(zone="zone", suffix="broker"),
        route=pb.Route(
            members=[pb.ProcessSpec.ID(zone="zone", suffix="broker")],
            primary=0,
            endpoints=["http://host:8080"],
        ),
        etcd=pb.Header.Etcd(cluster_id=1, member_id=2, revision=3, raft_term=4),
    )


def fragment() -> pb.Fragment:
    """A fragment that breaks no rule."""
    return pb.Fragment(journal="a/bc", begin=10, end=20, compression_codec=pb.NONE)


def check_refused(path: str, check: Callable[[], None]) -> None:
    """Check that a message is refused for the field of that path, with what was expected of it."""
    with pytest.raises(ValidationError) as raised:
        check()
    assert raised.value.field_path == path
    assert "expected" in raised.value.problem


def set_field(path: str, value: object) -> Callable[[object], None]:
    """Return what gives the field of that path, `a.b.c`, a value."""

    def change(message: object) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, last, value)

    return change
