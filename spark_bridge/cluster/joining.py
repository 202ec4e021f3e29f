"""Several Spark applications at one root: the address of their cluster, and which settings may differ. Pure.

    broadsheet://10.0.0.5:2379,10.0.0.6:2379/broadsheet/flights       broadsheets://… where etcd speaks TLS

Each driver keeps its settings in etcd for as long as it lives; a driver that comes compares its own with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.keys import check_root
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import Format
from broadsheet.runtime.installed_version import installed_version
from broadsheet.security.auth import key_ids

SCHEME: Final = "broadsheet"
TLS_SCHEME: Final = "broadsheets"
DRIVER: Final = Format("the record of a driver", "start this application with that release")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """The root of a cluster and the etcd that has it; secrets are not part of it."""

    endpoints: tuple[str, ...]
    """Of etcd, as `EtcdConfig` takes them."""
    root: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the address that a URL means.

        Raises:
            ValidationError: it is no such URL; the error's field is `join`.
        """
        scheme, found, rest = url.strip().partition("://")
        hosts, slash, path = rest.partition("/")
        if not found or scheme not in (SCHEME, TLS_SCHEME) or not hosts or not slash:
            raise ValidationError(
                "join",
                f"expected {SCHEME}://HOST:PORT[,HOST:PORT]/ROOT, as `ShardCluster.address` of the other "
                f"application shows it, got {url!r}",
            )
        prefix = "https://" if scheme == TLS_SCHEME else ""
        try:
            root = check_root("/" + path)
        except ValidationError as error:
            raise ValidationError("join", error.problem) from None
        return cls(endpoints=tuple(prefix + each for each in hosts.split(",")), root=root)

    def url(self) -> str:
        """Return the URL.

        Raises:
            ValidationError: an endpoint is a socket of this machine, or some speak TLS and some do not.
        """
        secure = [each.startswith("https://") for each in self.endpoints]
        if any(each.startswith("unix:") for each in self.endpoints) or len(set(secure)) != 1:
            raise ValidationError(
                "etcd.endpoints",
                f"expected addresses host:port, all with TLS or all without, got {', '.join(self.endpoints)}",
            )
        hosts = ",".join(each.rpartition("://")[2] for each in self.endpoints)
        return f"{TLS_SCHEME if secure[0] else SCHEME}://{hosts}{self.root}"


class DriverRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A driver that lives, and the settings that drivers at one root must share, or should; kept in etcd as JSON."""

    application_id: str
    """Spark's id."""
    broker: str
    """Address of the journal brokers."""
    is_embedded: bool
    """Whether etcd or the broker ends with this driver."""
    zone: str
    """Of its members, other than those of other applications; empty: each executor's own."""
    key_ids: tuple[str, ...] = ()
    """Of the keys that sign calls among members; empty: there are none, or they are in a file."""
    is_signed: bool = False
    """Whether members ask for signed calls."""
    is_tls: bool = False
    """Whether members serve TLS."""
    lease_ttl_seconds: float = 0.0
    """Of members."""
    allocation: str = ""
    """Digest of the allocation policy."""
    application: str = ""
    """Name of the factory."""
    release: str = ""
    """Of Broadsheet; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Settings of a driver that differ from those of a cluster that runs."""

    refused: tuple[str, ...]
    """Members could not work together; each says what to do."""
    told: tuple[str, ...]
    """Worth a warning: a rolling change has them for a while."""


def differences(ours: DriverRecord, theirs: DriverRecord) -> Differences:
    """Return how the settings of a driver that comes differ from those of one that is there."""
    return Differences(
        refused=tuple(text for is_so, text in _refusals(ours, theirs) if is_so),
        told=tuple(text for is_so, text in _warnings(ours, theirs) if is_so),
    )


def driver_record(
    config: MemberConfig,
    *,
    application_id: str,
    application: str | Callable[..., object],
    zone: str,
    is_embedded: bool,
) -> DriverRecord:
    """Return what a driver says of itself.

    Args:
        config: Of its members.
        application_id: Spark's.
        application: The factory or its name.
        zone: See `DriverRecord`.
        is_embedded: See `DriverRecord`.
    """
    return DriverRecord(
        application_id=application_id,
        broker=config.broker_address,
        is_embedded=is_embedded,
        zone=zone,
        key_ids=key_ids(config.auth_keys),
        is_signed=bool(config.auth_keys),
        is_tls=config.scheme == "https",
        lease_ttl_seconds=config.lease_ttl_seconds,
        # Equal for equal policies of one release; of others it may differ, which is a warning.
        allocation=hashlib.sha256(repr(config.allocation).encode()).hexdigest()[:12],
        application=_name_of(application),
        release=installed_version(),
    )


def _name_of(application: str | Callable[..., object]) -> str:
    if isinstance(application, str):
        return application
    function = getattr(application, "func", application)  # of a functools.partial
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def _refusals(ours: DriverRecord, theirs: DriverRecord) -> tuple[tuple[bool, str], ...]:
    embedded = (
        "its etcd or broker ends with it: start both on their own, and give both their addresses"
    )
    hosts = (
        "its members are in the zones of their hosts, so a standby could be with its primary in one application: "
        "start it with join=True, too"
    )
    signed = (
        f"its members {_do(theirs.is_signed)} ask for signed calls: give both the same auth_keys"
    )
    foreign = "none of its auth_keys is one of ours, so members would refuse each other's calls"
    tls = f"its members {_do(theirs.is_tls)} speak TLS: give both the same tls"
    return (
        (theirs.is_embedded, embedded),
        (not theirs.zone, hosts),
        (ours.is_signed != theirs.is_signed, signed),
        # Keys are changed one by one, so that one in common is enough.
        (
            bool(ours.key_ids and theirs.key_ids) and not set(ours.key_ids) & set(theirs.key_ids),
            foreign,
        ),
        (ours.is_tls != theirs.is_tls, tls),
    )


def _do(is_so: bool) -> str:
    return "do" if is_so else "do not"


def _warnings(ours: DriverRecord, theirs: DriverRecord) -> tuple[tuple[bool, str], ...]:
    named = ("broker", "lease_ttl_seconds", "allocation", "application", "release")
    return (
        *(
            (
                getattr(ours, name) != getattr(theirs, name),
                f"{name}: {getattr(ours, name)!r} here, {getattr(theirs, name)!r} there",
            )
            for name in named
        ),
        (
            bool(ours.zone) and ours.zone == theirs.zone,
            f"zone: {ours.zone!r} is also theirs, so a standby may be with its primary in one application",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A root, and the services that have it, as far as they are given."""

    root: str
    etcd: EtcdConfig | Sequence[str] | None
    broker: str | None


def place_of(join: bool | str, given: Place) -> Place:
    """Return the place of a cluster.

    Args:
        join: Whether it may be with others; or the address of theirs.
        given: What the caller says apart from that.

    Raises:
        ValidationError: something lacks, or contradicts the address; the error names it.
    """
    if isinstance(join, str):
        address = ClusterAddress.parse(join)
        if given.root and given.root != address.root:
            raise ValidationError(
                "root", f"expected none, or that of join, {address.root}, got {given.root}"
            )
        # Credentials are no part of an address: with these given, so are the endpoints.
        return Place(root=address.root, etcd=given.etcd or address.endpoints, broker=given.broker)
    if not given.root:
        raise ValidationError("root", "expected a prefix of keys in etcd, e.g. /broadsheet/app")
    if join and (given.etcd is None or given.broker is None):
        missing = "etcd" if given.etcd is None else "broker"
        raise ValidationError(
            missing,
            "expected its address, because one that this driver started would end with it, and the other "
            "applications' shards with both",
        )
    return given
