"""The table of docs/security.md: what each method needs, beside the methods that the services really have."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from broadsheet import wire as protocol
from broadsheet.security.auth import Capability
from tests.support.documents import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "security.md"
_ROW = re.compile(r"^\| `([\w.]+/\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NOT_SERVED, NO_TOKEN = "not served", "no token"
STANDARD = ("grpc.health.v1", "grpc.reflection.v1alpha", "grpc.channelz.v1")
"""Packages of services that members and brokers have both."""

_LATER = frozenset({"grpc.health.v1.Health/List"})
"""Methods that only the newer of the libraries that we admit declare. We implement none: callers get UNIMPLEMENTED."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A method, and what its row says."""

    method: str
    """`package.Service/Method`."""
    needs: str
    """The row's second cell."""
    descriptor: MethodDescriptor

    @property
    def service(self) -> str:
        """Full name of the service."""
        return self.method.partition("/")[0]

    @property
    def is_standard(self) -> bool:
        """Report whether both members and brokers have the service."""
        return self.method.startswith(STANDARD)

    @property
    def capability(self) -> Capability | None:
        """The capability, without what follows for special cases; None if no token permits more than none does."""
        if self.needs in (NOT_SERVED, NO_TOKEN):
            return None
        return Capability[self.needs.partition(",")[0]]

    def empty_request(self) -> Message:
        """Return a request without fields."""
        return GetMessageClass(self.descriptor.input_type)()


def methods() -> dict[str, MethodDescriptor]:
    """Return every method of every service that the protocol declares, by `package.Service/Method`."""
    ours = (
        f"{protocol.__name__}.{module.name}"
        for module in pkgutil.iter_modules(protocol.__path__)
        if module.name.endswith("_pb2")
    )
    theirs = (
        "grpc_health.v1.health_pb2",
        "grpc_reflection.v1alpha.reflection_pb2",
        "grpc_channelz.v1.channelz_pb2",
    )
    found: dict[str, MethodDescriptor] = {}
    for name in (*ours, *theirs):
        services: dict[str, ServiceDescriptor] = importlib.import_module(
            name
        ).DESCRIPTOR.services_by_name
        for service in services.values():
            found |= {f"{service.full_name}/{each.name}": each for each in service.methods}
    return {name: method for name, method in found.items() if name not in _LATER}


def rows() -> dict[str, str]:
    """Return what the table says a method needs, by method."""
    found = _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len({method for method, _, _ in found}) == len(found), "a method has two rows"
    return {method: needs for method, needs, _ in found}


def rpc_table() -> dict[str, Needs]:
    """Return the needs of every method that is both in the table and in the protocol."""
    declared = methods()
    return {
        method: Needs(method, needs, declared[method])
        for method, needs in rows().items()
        if method in declared
    }
