"""The REST gateway of a member: gRPC methods as HTTP requests with JSON, on the admin port.

    POST /v1/shards/list|stat|apply|get_hints|unassign            the Shard service
    POST /v1/allocation/plan|apply_plan|explain|list_moves|list_members|cordon_members
    POST /v1/keyed/describe_keyed|get_keys|scan_keys|list_timers  state by key, of any member's shards
    POST /v1/state/list_replicas                                  of this member's replicas
    POST /v1/keys/get_key_table                                   key → group → shard → primary
    POST /v1/elastic/split_shard|cancel_split|list_splits|merge_shards|cancel_merge|list_merges
    POST /v1/elastic/split_journal|list_journal_splits|roll_back_transaction
    GET  /v1/keys/watch?selector=…&rule=…&journals=…              the same at each change, as server-sent events
    GET  /v1/shards/watch?selector=…                              changes, as server-sent events
    GET  /v1/openapi.json                                         all of these, as OpenAPI 3.1

A body is the method's request in protobuf's JSON mapping, an answer its response, with fields of default values. Errors
have an HTTP status and `{"code", "message"}`. A request passes the same guard as a gRPC call (token, bounds, claims),
without a hop: the handlers are called in this process.

Source: https://protobuf.dev/programming-guides/json; google/rpc/code.proto (HTTP statuses); gazette/core's gateway of
consumers (POST /v1/shards/list and stat, default values emitted).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from broadsheet.consumer.elastic.key_table import RULE_NAMES
from broadsheet.consumer.rpc.grpc_status import CAUSE_METADATA, shortened
from broadsheet.consumer.rpc.guard import SHARD_CAPABILITIES, RpcGuard
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.actor import ACTOR
from broadsheet.security.auth import AUTHORIZATION
from broadsheet.serving.admin import HANDLER_SECONDS_MAX, AdminRoute, peer_context
from broadsheet.serving.standard_services import Health
from broadsheet.serving.tracing import TRACEPARENT, TRACESTATE
from broadsheet.wire import (
    allocation_pb2,
    elastic_pb2,
    keyed_pb2,
    keys_pb2,
    shard_pb2,
    state_pb2,
    watch_pb2,
)
from broadsheet.wire.keys_pb2 import WatchKeyTableRequest, WatchKeyTableResponse
from broadsheet.wire.selector_text import parse_selector
from broadsheet.wire.watch_pb2 import WatchShardsRequest, WatchShardsResponse

BODY_BYTES_MAX: Final = 4 << 20
"""Body of a request, as large as a gRPC message. It is read once the caller's token has been verified."""
OPENAPI_PATH: Final = "/v1/openapi.json"
_JSON_SPACE: Final = b" \t\r\n"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_EVENT_ID: Final = re.compile(r"(\d{1,19}):(\d{1,20})")
_ACTOR_HEADER: Final = "Broadsheet-Actor"
_CAUSE_HEADER: Final = "Broadsheet-Shard-Cause"
_HEADER_BYTES_MAX: Final = 4096
"""Longest value of that header: servers and clients take 8 KiB of headers together."""
_HTTP_STATUS: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}

_KEYS: Final = keys_pb2.DESCRIPTOR.services_by_name["KeyService"]
_OF_PEERS: Final = frozenset({"PrepareFork", "LeaveJournal", "SourceProgress"})
"""Methods of the Elastic service that members call at each other, in the course of what the others begin."""

# `Any` in this module: handlers, requests and responses of several services.


def _methods() -> Iterator[tuple[str, MethodDescriptor]]:
    """Yield the path and the descriptor of each method that has one answer."""
    for room, service in (
        ("shards", shard_pb2.DESCRIPTOR.services_by_name["Shard"]),
        ("allocation", allocation_pb2.DESCRIPTOR.services_by_name["AllocationService"]),
        ("keyed", keyed_pb2.DESCRIPTOR.services_by_name["KeyedService"]),
        ("elastic", elastic_pb2.DESCRIPTOR.services_by_name["ElasticService"]),
    ):
        for method in service.methods:
            if method.name in _OF_PEERS:
                continue
            yield f"/v1/{room}/{_snake_case(method.name)}", method
    yield "/v1/keys/get_key_table", _KEYS.methods_by_name["GetKeyTable"]
    replicas = state_pb2.DESCRIPTOR.services_by_name["StateService"].methods_by_name["ListReplicas"]
    yield "/v1/state/list_replicas", replicas


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _full_name(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


class Gateway:
    """Calls a member's handlers for HTTP requests. Register services here as with a gRPC server."""

    def __init__(self, guard: RpcGuard, health: Health) -> None:
        """Create a gateway without handlers.

        Args:
            guard: Of the member's gRPC server.
            health: Of the member: while it is not ready, it knows nothing of the cluster, and the gateway says so.
        """
        self._guard = guard
        self._health = health
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Take what generated code gives to every server; the next method gets the same by name."""
        del handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Take the handlers of a service."""
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def routes(self) -> list[AdminRoute]:
        """Return the routes of the admin port."""
        routes = [
            AdminRoute(
                path=path,
                method="POST",
                handler=partial(self._call, method),
                require=SHARD_CAPABILITIES[_full_name(method)],
                body_bytes_max=BODY_BYTES_MAX,
            )
            for path, method in _methods()
        ]
        watches = [
            AdminRoute(
                path=path,
                handler=partial(self._watch, watched),
                require=SHARD_CAPABILITIES[_full_name(watched.method)],
                streams=True,
            )
            for path, watched in _WATCHES.items()
        ]
        return [*routes, *watches, AdminRoute(path=OPENAPI_PATH, handler=_show_openapi)]

    async def _call(self, method: MethodDescriptor, request: web.Request) -> web.Response:
        context = _HttpContext(request)
        try:
            # In a thread, because the JSON of thousands of shards takes seconds.
            message = await asyncio.to_thread(_parsed, method, await _body_of(request))
            handler = await self._guarded(_full_name(method))
            response = await handler.unary_unary(message.SerializeToString(), context)
            text = await asyncio.to_thread(_json_of, response)
        except ValidationError as error:
            return _failure(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except _AbortedError as error:
            return _failure(error.code, error.details)
        return web.Response(
            text=text, content_type="application/json", headers=context.response_headers
        )

    async def _watch(self, watched: _Watched, request: web.Request) -> web.StreamResponse:
        try:
            message = watched.request(request)
            handler = await self._guarded(_full_name(watched.method))
            responses = handler.unary_stream(message.SerializeToString(), _HttpContext(request))
            async with aclosing(responses):
                # Errors have a status only before the first event.
                first = await anext(responses, None)
                stream = web.StreamResponse(
                    headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
                )
                await stream.prepare(request)
                if first is not None:
                    await _send_events(stream, watched, first, responses)
        except ValidationError as error:
            return _failure(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except _AbortedError as error:
            return _failure(error.code, error.details)
        return stream

    async def _guarded(self, name: str) -> Any:
        handler = self._handlers.get(name)
        if handler is None or not self._health.is_serving:
            raise _AbortedError(grpc.StatusCode.UNAVAILABLE, "the member is not ready yet")

        async def found(_: object) -> Any:
            return handler

        return await self._guard.intercept_service(found, _CallDetails(name))


async def _send_events(
    stream: web.StreamResponse, watched: _Watched, first: Any, rest: AsyncIterator[Any]
) -> None:
    """Send responses until the member leaves, the caller's token expires, or the client goes."""
    with suppress(ConnectionError, _AbortedError):
        await stream.write(await asyncio.to_thread(_event, watched, first))
        async for response in rest:
            await stream.write(await asyncio.to_thread(_event, watched, response))
        await stream.write_eof()


@dataclass(slots=True)
class _CallDetails:
    """The part of gRPC's details of a call that the guard reads."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


class _AbortedError(grpc.aio.AbortError):
    """A handler or the guard ended the call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def cause_header(cause: bytes) -> str:
    """Return a shard's cause as the value of a header: JSON text, in ASCII as headers are, of bounded length.

    Args:
        cause: In UTF-8.
    """
    text = " ".join(cause.decode(errors="replace").split())
    return json.dumps(
        shortened(text, _HEADER_BYTES_MAX, lambda character: len(json.dumps(character)) - 2)
    )


class _HttpContext:
    """The part of gRPC's context that handlers use, for an HTTP request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._ends_seconds = asyncio.get_running_loop().time() + HANDLER_SECONDS_MAX
        self._code: grpc.StatusCode | None = None
        self.response_headers: dict[str, str] = {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the token, the actor, and the trace context."""
        headers = self._request.headers
        named = (
            (AUTHORIZATION, "Authorization"),
            (ACTOR, _ACTOR_HEADER),
            (TRACEPARENT, TRACEPARENT),
            (TRACESTATE, TRACESTATE),
        )
        return tuple((key, headers[name]) for key, name in named if name in headers)

    def peer(self) -> str:
        """Return the caller's address; each connection has another."""
        transport = self._request.transport
        name = transport.get_extra_info("peername") if transport is not None else None
        return f"http:{name[0]}:{name[1]}" if name else "http:gone"

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Return what TLS verified of the caller."""
        return peer_context(self._request)

    def time_remaining(self) -> float:
        """Return the seconds that the admin port leaves to the handler."""
        return max(0.0, self._ends_seconds - asyncio.get_running_loop().time())

    def set_trailing_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None:
        """Tell a shard's cause in a header, in ASCII, as headers are."""
        for key, value in metadata:
            if key == CAUSE_METADATA:
                self.response_headers[_CAUSE_HEADER] = cause_header(value)

    def code(self) -> grpc.StatusCode | None:
        """Return the status with which the call was ended; None if it was not."""
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call.

        Raises:
            _AbortedError: always.
        """
        self._code = code
        raise _AbortedError(code, details)


async def _body_of(request: web.Request) -> bytes:
    """Return a request's body, decompressed.

    Raises:
        ValidationError: it is not encoded as its header says.
        HTTPRequestEntityTooLarge: it is too long.
    """
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise ValidationError(
            "body",
            "expected content that is whole, and compressed as the header Content-Encoding says",
        ) from error


def _parsed(method: MethodDescriptor, body: bytes) -> Message:
    """Return a request.

    Raises:
        ValidationError: the body is not the JSON of one.
    """
    message: Message = GetMessageClass(method.input_type)()
    # The parser takes an empty list for a message without fields.
    if body and body.lstrip(_JSON_SPACE)[:1] != b"{":
        raise ValidationError(
            "body", f"expected the JSON of a {method.input_type.full_name}, which is an object"
        )
    try:
        json_format.Parse(body or b"{}", message)
        _require_base64(method.input_type, body)
        return message
    # Deeply nested JSON ends in the first.
    except (RecursionError, ValueError, json_format.ParseError) as error:
        raise ValidationError(
            "body", f"expected the JSON of a {method.input_type.full_name}: {error}"
        ) from error


def _require_base64(request: Descriptor, body: bytes) -> None:
    """Refuse bytes that are no base64, of which the parser drops what it does not know: a cursor would be another one.

    Raises:
        ValidationError: a field of a request is none.
    """
    for field in request.fields:
        if field.type != FieldDescriptor.TYPE_BYTES:
            continue
        content = json.loads(body or b"{}")
        text = content.get(field.name, content.get(field.json_name)) or ""
        # Both alphabets, with or without padding, as the mapping says.
        if not _BASE64.fullmatch(text) or len(text.rstrip("=")) % 4 == 1:
            raise ValidationError(field.name, f"expected base64, got {text!r:.80}")


def _json_of(message: Message) -> str:
    return json_format.MessageToJson(
        message, indent=None, always_print_fields_with_no_presence=True, ensure_ascii=False
    )


@dataclass(frozen=True, slots=True)
class _Watched:
    """A method that streams, as server-sent events."""

    method: MethodDescriptor
    request: Callable[[web.Request], Message]
    """Makes the method's request; raises ValidationError."""
    parameters: Sequence[str]
    """Of the query, for OpenAPI."""
    event_id: Callable[[Any], str]
    """Returns the id of a response, from which a client can resume; empty: it cannot."""


def _shards_request(request: web.Request) -> WatchShardsRequest:
    revision, cluster_id = _last_event(request)
    return WatchShardsRequest(
        selector=parse_selector(request.query.get("selector", "")),
        resume_revision=revision,
        resume_cluster_id=cluster_id,
    )


def _keys_request(request: web.Request) -> WatchKeyTableRequest:
    rule = request.query.get("rule", "")
    if rule not in RULE_NAMES:
        raise ValidationError("rule", f"expected modulo or rendezvous, got {rule[:80]!r}")
    version, cluster_id = _last_event(request)
    return WatchKeyTableRequest(
        selector=parse_selector(request.query.get("selector", "")),
        rule=RULE_NAMES[rule],
        journals=filter(None, request.query.get("journals", "").split(",")),
        known_version=version,
        known_cluster_id=cluster_id,
    )


def _last_event(request: web.Request) -> tuple[int, int]:
    """Return the revision and the cluster of the last event that a client has; zeros if it has none."""
    last = request.headers.get("Last-Event-ID", "")
    if not last:
        return 0, 0
    known = _EVENT_ID.fullmatch(last)
    if known is None:
        raise ValidationError("Last-Event-ID", f"expected the id of an event, got {last[:80]!r}")
    revision, cluster_id = map(int, known.groups())
    if revision >= 1 << 63 or cluster_id >= 1 << 64:
        raise ValidationError("Last-Event-ID", f"expected 64-bit numbers, got {last!r}")
    return revision, cluster_id


def _id_of_shards(response: WatchShardsResponse) -> str:
    # Only a complete state can be resumed from.
    return (
        ""
        if response.more
        else f"{response.header.etcd.revision}:{response.header.etcd.cluster_id}"
    )


def _id_of_keys(response: WatchKeyTableResponse) -> str:
    # Also without a table: the one that the client has is that of this revision, too.
    return f"{response.header.etcd.revision}:{response.header.etcd.cluster_id}"


_WATCHES: Final[Mapping[str, _Watched]] = {
    "/v1/shards/watch": _Watched(
        watch_pb2.DESCRIPTOR.services_by_name["WatchService"].methods_by_name["WatchShards"],
        _shards_request,
        ("selector",),
        _id_of_shards,
    ),
    "/v1/keys/watch": _Watched(
        _KEYS.methods_by_name["WatchKeyTable"],
        _keys_request,
        ("selector", "rule", "journals"),
        _id_of_keys,
    ),
}
"""Methods that stream, by path."""


def _event(watched: _Watched, response: Any) -> bytes:
    """Return a response as an event."""
    event_id = watched.event_id(response)
    line = f"id: {event_id}\n" if event_id else ""
    return f"{line}data: {_json_of(response)}\n\n".encode()


def _failure(code: grpc.StatusCode, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if code is grpc.StatusCode.UNAUTHENTICATED else {}
    return web.json_response(
        {"code": code.name, "message": message}, status=_HTTP_STATUS.get(code, 500), headers=headers
    )


# OpenAPI.


async def _show_openapi(request: web.Request) -> web.Response:
    del request
    return web.json_response(openapi())


def openapi() -> dict[str, Any]:
    """Return the gateway's OpenAPI 3.1 document, made from the protos."""
    schemas: dict[str, Any] = {
        "Failure": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    }
    paths: dict[str, Any] = {}
    failure = {"description": "failure", "content": _content({"$ref": _reference("Failure")})}
    for path, method in _methods():
        paths[path] = {
            "post": {
                "operationId": f"{method.containing_service.name}.{method.name}",
                "requestBody": {"content": _content(_schema_of(method.input_type, schemas))},
                "responses": {
                    "200": {
                        "description": "answer",
                        "content": _content(_schema_of(method.output_type, schemas)),
                    },
                    "default": failure,
                },
            }
        }
    for path, watched in _WATCHES.items():
        method = watched.method
        event = _schema_of(method.output_type, schemas)
        paths[path] = {
            "get": {
                "operationId": f"{method.containing_service.name}.{method.name}",
                "parameters": [
                    *(
                        {"name": name, "in": "query", "schema": {"type": "string"}}
                        for name in watched.parameters
                    ),
                    {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {
                    "200": {
                        "description": f"server-sent events, whose data is a {method.output_type.name}",
                        "content": {"text/event-stream": {"schema": event}},
                    },
                    "default": failure,
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broadsheet", "version": "v1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


_WELL_KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.ListValue": {"type": "array"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d+)?s$"},
}
_SCALARS: Final[Mapping[int, Mapping[str, Any]]] = {
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_SINT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_SFIXED32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0},
    FieldDescriptor.TYPE_FIXED32: {"type": "integer", "minimum": 0},
}
_WIDE: Final = {"type": "string", "pattern": r"^-?\d+$"}
"""A number of 64 bits, which JSON cannot hold."""


def _schema_of(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to a message's schema, which is added to `schemas` with all that it refers to."""
    if message.full_name in _WELL_KNOWN:
        return dict(_WELL_KNOWN[message.full_name])
    if message.full_name not in schemas:
        # Noted before its fields are looked at, because messages may contain each other.
        schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
        schemas[message.full_name] = schema
        schema["properties"] = {
            field.json_name: _field_schema(field, schemas) for field in message.fields
        }
    return {"$ref": _reference(message.full_name)}


def _field_schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value = _single_schema(kind.fields_by_name["value"], schemas)
        return {"type": "object", "additionalProperties": value}
    single = _single_schema(field, schemas)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single_schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _schema_of(field.message_type, schemas)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    return dict(_SCALARS.get(field.type, _WIDE))
