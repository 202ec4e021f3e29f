"""Where etcd has what.

    {root}/store                      there is a store
    {root}/leases/{key}               the record, which lasts
    {root}/owners/{key}#{epoch}       its holder, alive: on the etcd lease of the holder's process; 16 hex digits
    {root}/workers/{name}             a worker, alive: on the same, so that others can put owner keys there for it

The epoch is in an owner key's name because an etcd key that is written again keeps its create revision, which is the
fence: each acquisition has a key of its own. There is at most one of them for a record, that of the record's epoch,
because every transaction that writes one compares the record and the one before it. Lease keys are percent-encoded in
them, so that no other key's begin alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from allocator.errors import ValidationError


@dataclass(frozen=True, slots=True)
class LeaseKeys:
    """The keys below one root."""

    root: str

    def __post_init__(self) -> None:
        if not self.root.startswith("/") or self.root.endswith("/"):
            raise ValidationError(
                "root", f"expected /a/path without a slash at its end, got {self.root!r}"
            )

    @property
    def prefix(self) -> bytes:
        """What all keys begin with."""
        return f"{self.root}/".encode()

    @property
    def store(self) -> bytes:
        """The mark of a store."""
        return f"{self.root}/store".encode()

    @property
    def leases(self) -> bytes:
        """What the keys of records begin with."""
        return f"{self.root}/leases/".encode()

    def lease(self, key: str) -> bytes:
        """Return the key of a record."""
        return self.leases + key.encode()

    def owner(self, key: str, epoch: int) -> bytes:
        """Return the key of a holder."""
        return self.owners_of(key) + f"{epoch:016x}".encode()

    def owners_of(self, key: str) -> bytes:
        """Return what the owner keys of a record begin with, and those of no other."""
        return f"{self.root}/owners/{quote(key, safe=':')}#".encode()

    def worker(self, name: str) -> bytes:
        """Return the key of a worker."""
        return f"{self.root}/workers/{name}".encode()
