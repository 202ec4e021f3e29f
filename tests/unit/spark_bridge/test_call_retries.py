"""What follows an attempt of a task's call: the whole table, and what an error tells."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.spark_bridge.errors import TokenIgnoredError
from broadsheet.spark_bridge.routing.retry_policy import (
    Again,
    CallAnswered,
    CallHistory,
    Confirm,
    Done,
    Failed,
    Final,
    Moved,
    Questioned,
    of_answer,
    of_error,
    takes_token,
)
from broadsheet.spark_bridge.routing.routes import ShardRoute
from broadsheet.wire.journal_pb2 import Header, ProcessSpec, Route
from broadsheet.wire.shard_metadata import HONOURED, HONOURED_VALUE, Pairs, refusal_metadata
from broadsheet.wire.shard_pb2 import (
    GetHintsRequest,
    ListRequest,
    StatRequest,
    StatResponse,
    Status,
)

HERE, THERE = "http://here:1", "http://there:1"


class RpcFailure(grpc.RpcError):
    """What gRPC raises."""

    def __init__(self, code: grpc.StatusCode, trailing: Pairs = ()) -> None:
        super().__init__()
        self._code = code
        self._trailing = tuple(trailing)

    def code(self) -> grpc.StatusCode:
        """The status."""
        return self._code

    def details(self) -> str:
        """Its text."""
        return "as told"

    def trailing_metadata(self) -> tuple[Any, ...]:
        """As gRPC gives them out. `Any`: it does not name their type."""
        return tuple(_Pair(key, value) for key, value in self._trailing)


class _Pair:
    def __init__(self, key: str, value: object) -> None:
        self.key = key
        self.value = value


def route_to(endpoint: str, *, revision: int = 5) -> ShardRoute:
    """A route with one replica."""
    return ShardRoute(
        shard_id="shard",
        revision=revision,
        primary="zone#member",
        endpoint=endpoint,
        replicas=(endpoint,),
        sources=(),
    )


def header_to(endpoint: str, *, revision: int = 6) -> Header:
    """A header that names one replica."""
    return Header(
        etcd=Header.Etcd(revision=revision),
        route=Route(
            members=[ProcessSpec.ID(zone="zone", suffix="other")], endpoints=[endpoint], primary=0
        ),
    )


def history() -> CallHistory:
    """Of a call that was just begun."""
    return CallHistory("shard", "/app/Count", seconds=2.5)


@pytest.mark.parametrize(
    "status", [Status.NOT_SHARD_PRIMARY, Status.NO_SHARD_PRIMARY, Status.SHARD_STOPPED]
)
def test_status_of_a_moving_shard_is_told_alike_in_messages_and_metadata(
    status: Status.ValueType,
) -> None:
    """Both conventions mean the same, and give the header on."""
    header = header_to(THERE)
    name = Status.Name(status)

    in_band = of_answer("shard", StatResponse(status=status, header=header), (), asked={})
    by_metadata = of_error(
        "shard", RpcFailure(grpc.StatusCode.UNAVAILABLE, refusal_metadata(status, header))
    )

    assert in_band == by_metadata == Moved(name, header)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, Moved),
        (grpc.StatusCode.CANCELLED, Moved),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Moved),
        (grpc.StatusCode.NOT_FOUND, Questioned),
        (grpc.StatusCode.UNIMPLEMENTED, Questioned),
        (grpc.StatusCode.ABORTED, Questioned),
        (grpc.StatusCode.PERMISSION_DENIED, Failed),
        (grpc.StatusCode.INVALID_ARGUMENT, Failed),
        (grpc.StatusCode.INTERNAL, Failed),
    ],
)
def test_codes_without_a_status(code: grpc.StatusCode, kind: type) -> None:
    """What a process that is gone, or the wrong one, may answer is asked again; what the application says is said."""
    assert isinstance(of_error("shard", RpcFailure(code)), kind)


def test_shard_not_found_is_questioned_with_its_own_error() -> None:
    """A member whose mirror is late does not know a new shard yet."""
    outcome = of_answer("shard", StatResponse(status=Status.SHARD_NOT_FOUND), (), asked={})

    assert isinstance(outcome, Questioned)
    assert isinstance(outcome.error, ShardNotFoundError)


def test_answers_of_other_kinds_are_answers() -> None:
    """An application's message may have no status, or one of its own; ours may say what does not concern routing."""
    other = StatResponse(status=Status.ETCD_TRANSACTION_FAILED)

    assert of_answer("shard", GetHintsRequest(), (), asked={}) == CallAnswered()
    assert of_answer("shard", b"bytes", (), asked={}) == CallAnswered()
    assert of_answer("shard", other, (), asked={}) == CallAnswered()


def test_token_must_be_acknowledged_if_it_was_asked() -> None:
    """Else the answer may be older than it."""
    honoured = ((HONOURED, HONOURED_VALUE),)

    assert of_answer("shard", StatResponse(), honoured, asked={"a": 1}) == CallAnswered()
    assert isinstance(of_answer("shard", StatResponse(), (), asked={"a": 1}), Questioned)
    assert of_answer("shard", StatResponse(), (), asked={}) == CallAnswered()


def test_takes_token_only_with_a_field_of_offsets() -> None:
    """The field's name alone does not make it one."""
    assert takes_token(StatRequest())
    assert not takes_token(ListRequest())
    assert not takes_token({"read_through": {}})


def test_moved_elsewhere_is_followed_at_once() -> None:
    """The header saves the question and the pause."""
    step = history().after(Moved("moved", header_to(THERE)), route_to(HERE), confirmed=False)

    assert isinstance(step, Again)
    assert step.learned is not None
    assert (step.learned.endpoint, step.pause) == (THERE, False)


@pytest.mark.parametrize(
    "header", [None, header_to(THERE, revision=5), header_to(HERE), header_to("")]
)
def test_moved_without_news_is_looked_up_after_a_pause(header: Header | None) -> None:
    """No header, none of a later revision, the same member, or one without an address: somebody else must be asked."""
    step = history().after(Moved("moved", header), route_to(HERE), confirmed=False)

    assert step == Again(None, pause=True)


def test_questioned_is_final_if_the_primary_was_just_named_so() -> None:
    """Or else after one question; only who asked the wrong process asks again."""
    error = RpcFailure(grpc.StatusCode.NOT_FOUND)
    questioned = Questioned("NOT_FOUND", error)
    call = history()

    assert call.after(questioned, route_to(HERE), confirmed=True) == Final(error)
    assert call.after(questioned, route_to(HERE), confirmed=False) == Confirm(error)
    assert call.confirmed(route_to(HERE), route_to(HERE, revision=9), error) == Final(error)
    assert call.confirmed(route_to(HERE), route_to(THERE), error) == Again(
        route_to(THERE), pause=False
    )


def test_token_ignored_by_the_primary_is_an_error_that_says_what_to_do() -> None:
    """It names the method, and how to serve it."""
    step = history().after(Questioned("no word", None), route_to(HERE), confirmed=True)

    assert isinstance(step, Final)
    assert isinstance(step.error, TokenIgnoredError)
    assert "/app/Count of shard shard" in str(step.error)
    assert "serving_shard" in str(step.error)


def test_answered_and_failed_end_the_call() -> None:
    """The two plain cases."""
    error = RpcFailure(grpc.StatusCode.INTERNAL)

    assert history().after(CallAnswered(), route_to(HERE), confirmed=False) == Done()
    assert history().after(Failed(error), route_to(HERE), confirmed=False) == Final(error)


def test_too_late_tells_each_member_once_with_its_last_cause_and_how_often() -> None:
    """A call of 30 seconds makes a hundred attempts: the error must stay one that can be read."""
    call = history()
    for cause in ("first", "second"):
        call.after(Moved(cause), route_to(HERE), confirmed=False)
    call.after(Moved("no primary"), None, confirmed=False)
    call.after(Moved("x" * 5000), route_to(THERE), confirmed=False)

    error = call.too_late()

    assert list(error.asked) == [HERE, "no member", THERE]
    assert error.asked[HERE] == "2 times, last second"
    assert "within 2.5 s (4 attempts)" in str(error)
    assert len(str(error)) < 1000


def test_too_late_keeps_the_cause_before_an_attempt_that_the_deadline_cut_short() -> None:
    """Why: "deadline exceeded" of the last attempt hid that the member belongs to another cluster."""
    call = history()
    call.after(Moved("of another cluster"), None, confirmed=False)
    call.after(Moved("deadline exceeded"), None, confirmed=False, cut_short=True)
    call.after(Moved("deadline exceeded"), route_to(HERE), confirmed=False, cut_short=True)

    asked = call.too_late().asked

    assert asked == {"no member": "2 times, last of another cluster", HERE: "deadline exceeded"}


def test_too_late_at_once_says_so() -> None:
    """A caller's own deadline may have passed before the first attempt."""
    assert "asked no member" in str(history().too_late())
