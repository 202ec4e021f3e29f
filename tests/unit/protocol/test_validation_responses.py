"""Each rule of the journal service's headers and responses: one broken field, one error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broadsheet.wire import journal_pb2 as pb, validation_journal_response as rules
from broadsheet.wire.validation_terms import validate_header
from tests.support.valid_messages import check_refused, fragment, header, journal_spec, set_field


def _route(change: Callable[[pb.Route], None]) -> Callable[[pb.Header], None]:
    return lambda message: change(message.route)


def _without_members(route: pb.Route) -> None:
    del route.members[:]
    del route.endpoints[:]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("process_id.zone", set_field("process_id.zone", "")),
        ("process_id.suffix", set_field("process_id.suffix", "abc")),
        ("route.members[0].zone", lambda message: set_field("zone", "")(message.route.members[0])),
        ("route.members", _route(lambda route: route.members.append(route.members[0]))),
        ("route.primary", set_field("route.primary", 1)),
        ("route.primary", set_field("route.primary", -2)),
        ("route.primary", _route(_without_members)),
        ("route.endpoints", _route(lambda route: route.endpoints.append("http://more:1"))),
        ("route.endpoints[0]", _route(lambda route: route.endpoints.__setitem__(0, "host:8080/"))),
        ("route.endpoints[0]", _route(lambda route: route.endpoints.__setitem__(0, "http://h:x"))),
        ("etcd.cluster_id", set_field("etcd.cluster_id", 0)),
        ("etcd.member_id", set_field("etcd.member_id", 0)),
        ("etcd.revision", set_field("etcd.revision", 0)),
        ("etcd.raft_term", set_field("etcd.raft_term", 0)),
    ],
)
def test_header_with_one_broken_field_names_it(
    path: str, change: Callable[[pb.Header], None]
) -> None:
    """Among them the zero-valued route: without members the primary must be -1."""
    message = header()
    validate_header(message)

    change(message)

    check_refused(path, lambda: validate_header(message))


def test_header_of_nobody_without_members_passes() -> None:
    """An unrouted header names no process and no member."""
    message = header()
    message.ClearField("process_id")
    _without_members(message.route)
    message.route.primary = -1

    validate_header(message)


def _committed(**fields: object) -> pb.AppendResponse:
    """An answer whose commit has these fields, and is right otherwise."""
    response = pb.AppendResponse(header=header(), registers=pb.LabelSet(), commit=fragment())
    for name, value in fields.items():
        setattr(response.commit, name, value)
    return response


def test_append_response_that_breaks_no_rule_passes() -> None:
    """With a path below its store's, too."""
    rules.validate_append_response(_committed())
    rules.validate_append_response(_committed(path_postfix="date=2026-01-01/hour=00"))


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("status", pb.AppendResponse(status=99, header=header())),  # type: ignore[arg-type]  # unknown on purpose
        ("header", pb.AppendResponse(status=pb.NOT_ALLOWED)),
        ("commit", pb.AppendResponse(header=header())),
        ("registers", pb.AppendResponse(header=header(), commit=fragment())),
        ("registers", pb.AppendResponse(status=pb.REGISTER_MISMATCH, header=header())),
        (
            "commit.end",
            pb.AppendResponse(header=header(), commit=pb.Fragment(journal="abcd", begin=2, end=1)),
        ),
        ("commit.journal", _committed(journal="/bcd")),
        ("commit.journal", _committed(journal="a//bcd")),
        ("commit.compression_codec", _committed(compression_codec=0)),
        ("commit.path_postfix", _committed(path_postfix="/a")),
        ("commit.path_postfix", _committed(path_postfix="a/../b")),
        ("commit.path_postfix", _committed(path_postfix="a b")),
    ],
)
def test_append_response_with_one_broken_field_names_it(
    path: str, response: pb.AppendResponse
) -> None:
    """A broker that answers nonsense is not believed."""
    check_refused(path, lambda: rules.validate_append_response(response))


@pytest.mark.parametrize(
    ("path", "response"),
    [
        ("status", pb.ReadResponse(status=99)),  # type: ignore[arg-type]  # unknown on purpose
        ("status", pb.ReadResponse(status=pb.NOT_ALLOWED, content=b"x")),
        ("header", pb.ReadResponse(header=header(), content=b"x")),
        ("write_head", pb.ReadResponse(write_head=1, content=b"x")),
        ("fragment", pb.ReadResponse(fragment=fragment(), content=b"x")),
        ("fragment_url", pb.ReadResponse(fragment_url="http://h/", content=b"x")),
        ("offset", pb.ReadResponse(offset=-1, content=b"x")),
        ("write_head", pb.ReadResponse(write_head=-1)),
        ("offset", pb.ReadResponse(offset=1)),
        ("fragment_url", pb.ReadResponse(fragment_url="http://h/")),
        ("offset", pb.ReadResponse(offset=9, write_head=20, fragment=fragment())),
        ("offset", pb.ReadResponse(offset=20, write_head=20, fragment=fragment())),
        ("write_head", pb.ReadResponse(offset=10, write_head=19, fragment=fragment())),
        (
            "fragment_url",
            pb.ReadResponse(offset=10, write_head=20, fragment=fragment(), fragment_url="nowhere"),
        ),
    ],
)
def test_read_response_with_one_broken_field_names_it(path: str, response: pb.ReadResponse) -> None:
    """Content comes alone; metadata agrees with its fragment."""
    check_refused(path, lambda: rules.validate_read_response(response))


def test_list_response_checks_each_journal() -> None:
    """Only the first message of a snapshot must have a header."""
    listed = pb.ListResponse.Journal(
        spec=journal_spec(), mod_revision=1, create_revision=1, route=pb.Route(primary=-1)
    )
    response = pb.ListResponse(header=header(), journals=[listed])
    rules.validate_list_response(response, first=True)
    response.ClearField("header")
    rules.validate_list_response(response, first=False)

    check_refused("header", lambda: rules.validate_list_response(response, first=True))
    response.journals[0].mod_revision = 0
    check_refused(
        "journals[0].mod_revision", lambda: rules.validate_list_response(response, first=False)
    )


def test_fragments_response_checks_each_fragment() -> None:
    """A page holds whole fragments and a token that is no negative number."""
    response = pb.FragmentsResponse(
        header=header(), fragments=[pb.FragmentsResponse.ListedFragment(spec=fragment())]
    )
    rules.validate_fragments_response(response)

    response.next_page_token = -1
    check_refused("next_page_token", lambda: rules.validate_fragments_response(response))
    response.fragments[0].spec.compression_codec = pb.INVALID
    check_refused(
        "fragments[0].spec.compression_codec", lambda: rules.validate_fragments_response(response)
    )
