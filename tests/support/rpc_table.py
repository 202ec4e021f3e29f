"""The table of docs/security.md: what each method needs, beside the methods that the services really have."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from broadsheet.consumer import protocol
from broadsheet.consumer.protocol.auth import Capability
from tests.support.documents import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "security.md"
_ROW = re.compile(r"^\| `([\w.]+/\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_NOT_SERVED = "not served"


@dataclass(frozen=True, slots=True)
class Needs:
    """A method, and what its row says."""

    method: str
    """`package.Service/Method`."""
    capability: Capability | None
    """None: the method is not served."""
    descriptor: MethodDescriptor

    @property
    def service(self) -> str:
        """Full name of the service."""
        return self.method.partition("/")[0]

    def empty_request(self) -> Message:
        """Return a request without fields."""
        return GetMessageClass(self.descriptor.input_type)()


def methods() -> dict[str, MethodDescriptor]:
    """Return every method of every service that the protocol declares, by `package.Service/Method`."""
    found: dict[str, MethodDescriptor] = {}
    for module in pkgutil.iter_modules(protocol.__path__):
        if module.name.endswith("_pb2"):
            loaded = importlib.import_module(f"{protocol.__name__}.{module.name}")
            services: dict[str, ServiceDescriptor] = loaded.DESCRIPTOR.services_by_name
            for service in services.values():
                found |= {f"{service.full_name}/{each.name}": each for each in service.methods}
    return found


def rows() -> dict[str, str]:
    """Return what the table says a method needs, by method."""
    found = _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len({method for method, _, _ in found}) == len(found), "a method has two rows"
    return {method: needs for method, needs, _ in found}


def rpc_table() -> dict[str, Needs]:
    """Return the needs of every method that is both in the table and in the protocol."""
    declared = methods()
    return {
        method: Needs(method, _capability(needs), declared[method])
        for method, needs in rows().items()
        if method in declared
    }


def _capability(needs: str) -> Capability | None:
    """Return the capability that a cell begins with: what comes after a comma is a special case."""
    return None if needs == _NOT_SERVED else Capability[needs.partition(",")[0]]
