"""Addresses of a cluster's living members, for resolvers that outlive the members they were given.

A streaming query pickles its functions once and runs for weeks, in which every member may have been replaced. So what a
worker finds out is kept for the workers after it, in a file of the executor's machine; and if the members that are
known do not answer, the cluster's own list is read, in etcd.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from google.protobuf.message import DecodeError
from xxhash import xxh3_128_hexdigest

from broadsheet.allocator.errors import AllocatorError
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.endpoints import parse_endpoint
from broadsheet.wire.shard_pb2 import ConsumerSpec

if TYPE_CHECKING:
    from broadsheet.allocator.etcd.client import EtcdClient

MEMBERS_MAX: Final = 4096
"""Most addresses that are kept."""
REFRESH_SECONDS: Final = 2.0
"""Least time between two reads of etcd by one worker, because many may wait for members at once."""
_FILE_BYTES_MAX: Final = 1 << 20
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDirectory:
    """The list of a cluster's members in etcd, which executors must be able to reach."""

    etcd: EtcdConfig
    """Travels with the closure, with its password if it has one."""
    root: str
    """Prefix of the cluster's keys in etcd."""

    def living(self) -> tuple[str, ...]:
        """Return the addresses of the members that hold a lease; blocks.

        Raises:
            AllocatorError: etcd did not answer.
        """
        # Imported here, because short tasks need it seldom. On a thread of its own, because the caller's may run an
        # event loop.
        from broadsheet.consumer.client.loop_thread import LoopThread

        with LoopThread(name="member-directory") as loop:
            return loop.call(self._living())

    async def _living(self) -> tuple[str, ...]:
        from broadsheet.allocator.etcd.client import EtcdClient
        from broadsheet.allocator.keys import Keys

        async with EtcdClient(self.etcd) as etcd:
            return await _addresses(etcd, Keys(self.root).members_prefix)


async def _addresses(etcd: EtcdClient, prefix: bytes) -> tuple[str, ...]:
    found = await etcd.get_range(prefix, prefix_range_end(prefix))
    addresses: dict[str, bool] = {}
    for kv in found.kvs:
        # The watch of the root reports what is no member.
        with suppress(DecodeError):
            spec = ConsumerSpec.FromString(kv.value)
            if spec.process_spec.endpoint:
                addresses[spec.process_spec.endpoint] = spec.exiting
    # Members that leave still answer, so they are the last resort.
    return tuple(sorted(addresses, key=lambda address: (addresses[address], address)))


class MemberLists:
    """The latest known members of each cluster, shared with the workers that follow on this machine."""

    def __init__(self, directory: Path | None = None) -> None:
        """Read nothing yet.

        Args:
            directory: For the lists; None: one of this user in the system's directory for temporary files.
        """
        name = f"broadsheet-members-{os.geteuid()}"
        self._directory = directory or Path(tempfile.gettempdir()) / name
        self._lists: dict[str, tuple[str, ...]] = {}
        self._refreshed: dict[str, float] = {}
        self._refreshing = Lock()

    def known(self, cluster: str) -> tuple[str, ...]:
        """Return the members that this worker or an earlier one found last; empty if none did."""
        found = self._lists.get(cluster)
        if found is None:
            found = self._lists.setdefault(cluster, self._load(cluster))
        return found

    def keep(self, cluster: str, addresses: Iterable[str]) -> None:
        """Remember the members of a cluster, here and for later workers."""
        found = tuple(sorted(set(addresses)))[:MEMBERS_MAX]
        if found and found != self.known(cluster):
            self._lists[cluster] = found
            self._save(cluster, found)

    def refresh(self, cluster: str, directory: MemberDirectory) -> tuple[str, ...]:
        """Return the members that etcd lists now, and keep them; those that are known if it was just asked.

        Etcd that does not answer is told in the log alone, because the members that are known are asked again.
        """
        with self._refreshing:
            last = self._refreshed.get(cluster, float("-inf"))
            if time.monotonic() - last < REFRESH_SECONDS:
                return self.known(cluster)
            try:
                living = directory.living()
            except (AllocatorError, ValidationError) as error:
                _log.warning("resolver.directory_unavailable", cause=str(error))
                living = ()
            self._refreshed[cluster] = time.monotonic()
        self.keep(cluster, living)
        return living or self.known(cluster)

    def _path(self, cluster: str) -> Path:
        return self._directory / f"{xxh3_128_hexdigest(cluster.encode())}.json"

    def _load(self, cluster: str) -> tuple[str, ...]:
        try:
            if not self._is_ours():
                return ()
            with self._path(cluster).open("rb") as file:
                listed = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=list[str])
            return tuple(filter(_is_address, listed))
        # Another worker's file is foreign: without it, members are looked up as if no worker had been before.
        except (OSError, ValueError):
            return ()

    def _save(self, cluster: str, addresses: tuple[str, ...]) -> None:
        path = self._path(cluster)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            # Replaced as a whole, because several workers write it.
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(addresses))
            draft.replace(path)
        except OSError as error:
            _log.debug("resolver.list_not_kept", path=str(path), cause=str(error))

    def _is_ours(self) -> bool:
        """Return whether only this user can write the directory: calls with credentials go where its files say."""
        found = self._directory.lstat()
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & _OTHERS
        )


def _is_address(value: str) -> bool:
    if not value.startswith(("http://", "https://")):
        return False
    try:
        parse_endpoint(value, may_be_tls=True)
    except ValidationError:
        return False
    return True
