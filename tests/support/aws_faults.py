"""Faults between a client of boto3 and its server: answers of an overloaded service, and lost requests and answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

Fault = Callable[[str], Any]  # Any: what stands in for an answer.


class Client(Protocol):
    """Any client of boto3."""

    @property
    def meta(self) -> Any:  # Any: of boto3's many clients.
        """What botocore knows about it."""
        ...


@dataclass(slots=True)
class AwsFaults:
    """What happens to the next calls of some kinds."""

    requests: list[str] = field(default_factory=list)
    """Before a call: an error's code, `lost`, or `none`; one for each call."""
    answers: list[str] = field(default_factory=list)
    """After a call: `lost`, or `none`; one for each call that is answered."""
    calls: list[str] = field(default_factory=list)
    """The calls that were made, by name."""
    rewrite: Callable[[str, dict[str, Any]], None] = lambda name, answer: None
    """Changes an answer; given the call's name. Any: as botocore parsed it."""


@contextmanager
def aws_faults(client: Client, *operations: str) -> Iterator[AwsFaults]:
    """Put faults before a client's calls of these operations."""
    faults = AwsFaults()
    events = client.meta.events
    hooks: list[tuple[str, Any]] = []
    service = client.meta.service_model.service_id.hyphenize()
    for operation in operations:
        hooks += [
            (f"before-send.{service}.{operation}", _before(faults, operation)),
            (f"after-call.{service}.{operation}", _after(faults, operation)),
        ]
    for event, hook in hooks:
        events.register(event, hook)
    try:
        yield faults
    finally:
        for event, hook in hooks:
            events.unregister(event, hook)


def _before(faults: AwsFaults, operation: str) -> Any:
    def hook(request: Any, **_: object) -> AWSResponse | None:
        faults.calls.append(operation)
        fault = faults.requests.pop(0) if faults.requests else "none"
        if fault == "none":
            return None
        if fault == "lost":
            raise ConnectTimeoutError(endpoint_url=request.url)
        body = json.dumps({"__type": fault, "message": "by the test"}).encode()
        status = 500 if fault == "InternalServerError" else 400
        return AWSResponse(request.url, status, HTTPHeaders(), _Body(body))

    return hook


def _after(faults: AwsFaults, operation: str) -> Any:
    def hook(parsed: dict[str, Any], **_: object) -> None:
        faults.rewrite(operation, parsed)
        fault = faults.answers.pop(0) if faults.answers else "none"
        if fault == "lost":
            raise ReadTimeoutError(endpoint_url="the test's")

    return hook


class _Body(io.BytesIO):
    """What botocore reads an answer from."""

    def stream(self, **_: object) -> Iterator[bytes]:
        """Yield the whole."""
        yield self.read()
