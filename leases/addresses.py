"""Store addresses: one text names a store of lease records in commands and configurations.

    etcd:/my-application?endpoints=etcd-1:2379,etcd-2:2379
    sql:postgresql://db.example/leases?table=my_application
    sql:sqlite:////var/lib/leases.db
    dynamodb:my-application?layout=kcl-java&region=eu-central-1
    azblob:my-container?layout=eph&group=$default

An address holds no secrets: they come from the environment, where the systems' own clients read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.secret_url import SecretUrl

NATIVE: Final = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of store."""

    example: str
    options: frozenset[str]
    """Options allowed after the question mark."""
    options_by_layout: Mapping[str, frozenset[str]]
    """The layouts, each with the further options that it allows."""


_NO_MORE: Final = frozenset[str]()

KINDS: Final[Mapping[str, _Kind]] = {
    "etcd": _Kind(
        example="etcd:/my-application",
        options=frozenset({"endpoints", "ca_file", "cert_file", "key_file"}),
        options_by_layout={NATIVE: _NO_MORE},
    ),
    "sql": _Kind(
        example="sql:postgresql://host/database",
        options=frozenset({"table"}),
        options_by_layout={NATIVE: _NO_MORE},
    ),
    "dynamodb": _Kind(
        example="dynamodb:my-table?layout=kcl-java",
        options=frozenset({"layout", "region", "endpoint"}),
        options_by_layout={
            NATIVE: _NO_MORE,
            "kcl-java": _NO_MORE,
            "vmware-go": frozenset({"lease_seconds"}),
        },
    ),
    "azblob": _Kind(
        example="azblob:my-container?layout=eph",
        options=frozenset({"layout", "connection_env"}),
        options_by_layout={
            NATIVE: frozenset({"prefix"}),
            "eph": frozenset({"group", "prefix"}),
            "eventhubs": frozenset({"scope"}),
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """A parsed store address."""

    kind: str
    """One of `KINDS`."""
    place: str = field(repr=False)
    """Root, database URL, table or container."""
    layout: str
    options: Mapping[str, str] = field(repr=False)
    url: SecretUrl
    """The address as written."""

    @property
    def text(self) -> str:
        """The address without secrets, for display."""
        return self.url.shown


def is_store_address(text: str) -> bool:
    """Tell an address from the name of a file."""
    return text.partition(":")[0] in KINDS


def parse_store_address(address: str | SecretUrl) -> StoreAddress:
    """Parse a store address.

    Raises:
        ValidationError: it is none; the message says what is wrong, and shows one that is right.
    """
    url = SecretUrl.of(address)
    kind_name, separator, rest = url.reveal().partition(":")
    if not separator or kind_name not in KINDS:
        forms = ", ".join(kind.example for kind in KINDS.values())
        raise ValidationError("store", f"expected e.g. {forms}; got {url.shown!r:.80}")
    kind = KINDS[kind_name]
    place, options = _taken_apart(kind_name, rest)
    if not place or (kind_name == "etcd" and not place.startswith("/")):
        raise ValidationError("store", f"expected e.g. {kind.example}, got {url.shown!r:.80}")
    layout = options.pop("layout", NATIVE)
    if layout not in kind.options_by_layout:
        known = ", ".join(kind.options_by_layout)
        raise ValidationError(
            "store.layout", f"{kind_name}: expected one of {known}; got {layout!r:.80}"
        )
    known_options = (kind.options | kind.options_by_layout[layout]) - {"layout"}
    for name in options:
        if name not in known_options:
            raise ValidationError(
                f"store.{name}",
                f"{kind_name} with layout {layout} takes {', '.join(sorted(known_options))}",
            )
    return StoreAddress(kind=kind_name, place=place, layout=layout, options=options, url=url)


def _taken_apart(kind_name: str, rest: str) -> tuple[str, dict[str, str]]:
    """Split an address into its target and its options; a database URL keeps its own options."""
    place, _, query = rest.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    if kind_name != "sql":
        return place, dict(pairs)
    parts = query.split("&") if query else []
    own = [part for part in parts if part.partition("=")[0] not in KINDS["sql"].options]
    options = {name: value for name, value in pairs if name in KINDS["sql"].options}
    return "?".join([place, *(["&".join(own)] if own else [])]), options
