"""The etcd package's pure parts: endpoints, the meaning of failures, and the order of batched transactions."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from broadsheet.allocator.errors import (
    EtcdAuthenticationError,
    EtcdLimitError,
    EtcdRequestError,
    EtcdUnavailableError,
    LeaseNotFoundError,
    RevisionCompactedError,
)
from broadsheet.allocator.etcd.config import EtcdConfig, parse_endpoint
from broadsheet.allocator.etcd.status import error_for
from broadsheet.allocator.etcd.txn_batch import holds, waves_of
from broadsheet.allocator.ops import (
    Compare,
    CompareTarget,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    TxnCheckpoint,
)
from broadsheet.runtime.errors import ValidationError


@pytest.mark.parametrize(
    ("text", "target", "tls"),
    [
        ("127.0.0.1:2379", "127.0.0.1:2379", True),
        ("http://etcd.example:2379", "etcd.example:2379", False),
        ("https://etcd.example:2379/", "etcd.example:2379", True),
        ("http://[::1]:2379", "[::1]:2379", False),
        ("unix:/run/etcd/client:0", "unix:/run/etcd/client:0", False),
        ("unix:///run/etcd.sock", "unix:/run/etcd.sock", False),
    ],
)
def test_endpoint_in_each_form_is_understood(text: str, target: str, tls: bool) -> None:
    """With certificates configured, TLS is the default where the scheme does not say otherwise."""
    endpoint = parse_endpoint(text, tls_by_default=True)

    assert (endpoint.target, endpoint.tls, endpoint.name) == (target, tls, text)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":2379", "host:port", "host:70000", "ftp://h:1", "unix:relative"]
)
def test_endpoint_in_no_form_is_refused_by_name(text: str) -> None:
    """A slip in the configuration is named with its place before anything connects."""
    with pytest.raises(ValidationError, match=r"etcd\.endpoints\[1\]: expected"):
        EtcdConfig(endpoints=("127.0.0.1:2379", text))


def test_config_with_half_a_pair_is_refused() -> None:
    """A certificate without key, or a user without password, is a slip."""
    with pytest.raises(ValidationError, match="cert_file"):
        EtcdConfig(cert_file=Path("a.pem"))
    with pytest.raises(ValidationError, match="username"):
        EtcdConfig(username="root")


def test_config_hides_the_password() -> None:
    """Configurations are logged."""
    assert "hunter2" not in repr(EtcdConfig(username="root", password="hunter2"))


@pytest.mark.parametrize(
    ("code", "detail", "error_type", "shown"),
    [
        (
            "INVALID_ARGUMENT",
            "etcdserver: too many operations in txn request",
            EtcdLimitError,
            "128",
        ),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", EtcdLimitError, "max-request"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: duplicate key given in txn request",
            EtcdLimitError,
            "one",
        ),
        (
            "RESOURCE_EXHAUSTED",
            "etcdserver: mvcc: database space exceeded",
            EtcdLimitError,
            "quota",
        ),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max", EtcdLimitError, "message"),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision has been compacted",
            RevisionCompactedError,
            "compacted",
        ),
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseNotFoundError, "lease"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: authentication failed, invalid user ID or password",
            EtcdAuthenticationError,
            "password",
        ),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdAuthenticationError, "may do"),
        ("UNAVAILABLE", "etcdserver: no leader", EtcdUnavailableError, "h:1"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EtcdUnavailableError, "h:1"),
        ("INVALID_ARGUMENT", "etcdserver: key is not provided", EtcdRequestError, "key is not"),
    ],
)
def test_failure_becomes_an_error_that_says_what_to_do(
    code: str, detail: str, error_type: type[Exception], shown: str
) -> None:
    """Codes are shared between refusals; each text leads to the class that its caller acts on."""
    error = error_for(grpc.StatusCode[code], detail, ("h:1",))

    assert type(error) is error_type
    assert shown in str(error)


def _checkpoint(
    subject: str, *operations: Operation, compares: tuple[bytes, ...] = ()
) -> TxnCheckpoint:
    return TxnCheckpoint(tuple(map(Compare.absent, compares)), operations, subject)


def _put(key: bytes) -> Put:
    return Put(key, b"")


def test_waves_put_dependent_checkpoints_after_one_another() -> None:
    """Writes of one key keep their order, readers wait for writers and writers for readers; others go at once."""
    checkpoints = [
        _checkpoint("write a", _put(b"a")),
        _checkpoint("write b", _put(b"b"), compares=(b"member",)),
        _checkpoint("write c", _put(b"c"), compares=(b"member",)),
        _checkpoint("write a again", _put(b"a")),
        _checkpoint("compare a", _put(b"d"), compares=(b"a",)),
        _checkpoint("write member", _put(b"member")),
        _checkpoint("read a", Get(b"a"), _put(b"e")),
    ]

    waves = [[each.subject for each in wave] for wave in waves_of(checkpoints)]

    assert waves == [
        ["write a", "write b", "write c"],
        ["write a again", "write member"],
        ["compare a", "read a"],
    ]


def test_waves_make_a_range_a_barrier() -> None:
    """A range may overlap any key: what was before stays before, what comes after stays after."""
    checkpoints = [
        _checkpoint("first", _put(b"a")),
        _checkpoint("range", Delete(b"a", b"b")),
        _checkpoint("last", _put(b"z")),
    ]

    assert [[each.subject for each in wave] for wave in waves_of(checkpoints)] == [
        ["first"],
        ["range"],
        ["last"],
    ]


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (Compare.mod_revision(b"k", 5), True),
        (Compare.mod_revision(b"k", 4), False),
        (Compare.create_revision(b"k", 3), True),
        (Compare(b"k", CompareTarget.VERSION, 2), True),
        (Compare(b"k", CompareTarget.LEASE, 9), True),
        (Compare(b"k", CompareTarget.VALUE, b"v"), True),
        (Compare(b"k", CompareTarget.VALUE, b"w"), False),
        (Compare.absent(b"k"), False),
        (Compare.absent(b"other"), True),
        (Compare.mod_revision(b"other", 1), False),
        (Compare(b"other", CompareTarget.VALUE, b""), False),
    ],
)
def test_comparison_holds_here_as_it_does_in_etcd(compare: Compare, expected: bool) -> None:
    """Culprits are found by evaluating comparisons on what a refused transaction read back."""
    found = KeyValue(key=b"k", value=b"v", create_revision=3, mod_revision=5, version=2, lease=9)

    assert holds(compare, {b"k": found}) is expected


@pytest.mark.parametrize(
    ("lease_seconds", "request_", "connect", "probe"),
    [
        (None, 5.0, 10.0, 3.0),
        (2.0, 5.0, 1.0, 3.0),
        (20.0, 10.0, 10.0, 5.0),
        (60.0, 30.0, 30.0, 15.0),
    ],
)
def test_etcd_deadlines_follow_the_lease_that_depends_on_them(
    lease_seconds: float | None, request_: float, connect: float, probe: float
) -> None:
    """A deadline that is fixed is shorter than the promise of some lease: round trips of seconds then end members."""
    found = EtcdConfig(lease_ttl_seconds=lease_seconds).deadlines

    assert (found.request, found.connect, found.probe) == (request_, connect, probe)


def test_etcd_deadlines_that_are_given_are_taken() -> None:
    """An operator who knows the network better than the lease says so."""
    given = EtcdConfig(
        request_timeout_seconds=1.5,
        connect_timeout_seconds=2.5,
        keep_alive_timeout_seconds=3.5,
        lease_ttl_seconds=20.0,
    ).deadlines

    assert (given.request, given.connect, given.probe) == (1.5, 2.5, 3.5)
    with pytest.raises(ValidationError, match="connect_timeout_seconds"):
        EtcdConfig(connect_timeout_seconds=0.0)
