"""Access to a cluster's members for readers of tables: options, and a request to the first that answers.

gRPC is imported where it is used, because Spark may fork a process that has imported this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from broadsheet.allocator.errors import AllocatorError
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.errors import SparkBridgeError
from broadsheet.spark_bridge.etcd_options import ETCD_OPTIONS, etcd_of, root_of
from broadsheet.spark_bridge.format_options import TLS_OPTIONS, FormatOptions, OptionError, TlsPaths
from broadsheet.wire.selector_text import parse_selector

if TYPE_CHECKING:
    from broadsheet.security.auth import ClientAuth

ADDRESS: Final = "the address of a member, or of several with commas, e.g. http://127.0.0.1:8080"
_SELECTOR: Final = "a label selector that says which shards, e.g. id:prefix=counts-"
_ETCD: Final = (
    "endpoints of the cluster's etcd, where living members are listed, e.g. 127.0.0.1:2379"
)
_DEFAULT_ROOT: Final = "/broadsheet"
COMMON_OPTIONS: Final = ("address", "authKeysFile", *TLS_OPTIONS, *ETCD_OPTIONS)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Addresses of members, the keys that authorize requests to them, and files for TLS."""

    addresses: tuple[str, ...]
    auth_keys_file: str | None = None
    """A file on each machine, instead of the keys themselves, because Spark shows options in plans and logs."""

    tls: TlsPaths = field(default_factory=TlsPaths)
    """Files for `https://` addresses."""
    etcd: EtcdConfig | None = None
    """Lists the living members if none of `addresses` answers, because a query may outlive them; None: they must do."""
    root: str = _DEFAULT_ROOT
    """Prefix of the cluster's keys in etcd."""

    def permits(self, endpoint: str) -> bool:
        """Report whether a route's member may be asked: not in clear text, if the members that were given have TLS."""
        # Not by `is_tls`, whose module imports gRPC.
        return not self._has_tls or endpoint.lower().startswith("https://")

    @property
    def _has_tls(self) -> bool:
        return all(address.lower().startswith("https://") for address in self.addresses)

    def auth(self) -> ClientAuth | None:
        """Return the signer of requests; None without keys.

        Raises:
            OptionError: the file cannot be read, or holds no keys.
        """
        if self.auth_keys_file is None:
            return None
        from broadsheet.security.auth import KeyedAuth, keys_from

        try:
            return KeyedAuth(keys_from("", Path(self.auth_keys_file)))
        except ValidationError as error:
            raise OptionError(
                "authKeysFile",
                f"a file with the cluster's keys in base64 ({error})",
                got=self.auth_keys_file,
            ) from error


def options_of(options: Mapping[str, str], *, known: Collection[str]) -> FormatOptions:
    """Return the options of a table.

    Args:
        options: As given to Spark.
        known: Those that the table has beside the common ones.

    Raises:
        OptionError: one is unknown.
    """
    # Spark passes the argument of `load` in this option.
    if "path" in options:
        raise OptionError("path", "none: shards are chosen by selector", got=str(options["path"]))
    return FormatOptions(options, known=(*COMMON_OPTIONS, *known))


def access_of(given: FormatOptions) -> ClusterAccess:
    """Return the access that options describe.

    Raises:
        OptionError: no address is given.
    """
    addresses = tuple(each.strip() for each in given.text("address", ADDRESS).split(","))
    if not all(addresses):
        raise OptionError("address", ADDRESS, got=given.text_or_none("address"))
    return ClusterAccess(
        addresses=addresses,
        auth_keys_file=given.text_or_none("authKeysFile") or None,
        tls=TlsPaths.of(given),
        etcd=None if given.text_or_none("etcd") is None else etcd_of(given, _ETCD),
        root=root_of(given, default=_DEFAULT_ROOT),
    )


def selector_of(given: FormatOptions) -> str:
    """Return the selector's text; empty selects every shard.

    Raises:
        OptionError: it is not a selector.
    """
    text = given.text_or_none("selector") or ""
    try:
        parse_selector(text)
    except ValidationError as error:
        raise OptionError("selector", f"{_SELECTOR} ({error})", got=text) from error
    return text


async def answer_of(access: ClusterAccess, ask: Callable[[str], Awaitable[AnswerT]]) -> AnswerT:
    """Return the answer of the first member that can be reached: of those named, then of those that etcd lists.

    Raises:
        NoMemberAnsweredError: none can be reached.
    """
    try:
        return await first_answer(access.addresses, ask)
    except NoMemberAnsweredError as error:
        if access.etcd is None:
            raise
        met = error.met
    from broadsheet.spark_bridge.routing.member_list import MemberDirectory

    directory = MemberDirectory(etcd=access.etcd, root=access.root)
    try:
        listed = await asyncio.to_thread(directory.living)
    except (AllocatorError, ValidationError) as error:
        raise NoMemberAnsweredError({**met, "etcd": str(error)}) from error
    others = [each for each in listed if each not in met and access.permits(each)]
    if not others:
        raise NoMemberAnsweredError({**met, "etcd": f"no other member is at {access.root}"})
    try:
        return await first_answer(others, ask)
    except NoMemberAnsweredError as error:
        raise NoMemberAnsweredError({**met, **error.met}) from error


async def first_answer(
    addresses: Collection[str], ask: Callable[[str], Awaitable[AnswerT]]
) -> AnswerT:
    """Return the answer of the first of `addresses` that can be reached.

    Raises:
        NoMemberAnsweredError: none can be reached.
    """
    from broadsheet.runtime.errors import EndpointError

    met: dict[str, str] = {}
    for address in addresses:
        try:
            return await ask(address)
        except (EndpointError, TimeoutError) as error:
            met[address] = str(error)
    raise NoMemberAnsweredError(met)


class NoMemberAnsweredError(SparkBridgeError):
    """None of the members named can be reached."""

    def __init__(self, met: Mapping[str, str]) -> None:
        causes = "; ".join(f"{address}: {cause}" for address, cause in met.items())
        super().__init__(
            f"no member answers ({causes}): give option address one that lives, or options etcd and root"
        )
        self.met = dict(met)


class StateReadError(SparkBridgeError):
    """A shard's state cannot be read; the message has the reasons."""

    def __init__(self, shard_id: str, detail: str) -> None:
        super().__init__(f"the state of shard {shard_id} cannot be read: {detail}")
        self.shard_id = shard_id
        self.detail = detail
