"""Each rule of the journal service's messages: one broken field, one error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from allocator.errors import ValidationError
from consumer.protocol import journal_pb2 as pb
from consumer.protocol import validation_journal as rules
from consumer.protocol.labels import label_set


def journal_spec() -> pb.JournalSpec:
    """A spec that breaks no rule."""
    return pb.JournalSpec(
        name="flights/part-000",
        replication=1,
        labels=label_set({"content-type": "application/x-ndjson", "app": "flights"}),
        fragment=pb.JournalSpec.Fragment(
            length=1 << 20,
            compression_codec=pb.NONE,
            stores=["s3://bucket/path/", "file:///local/"],
            refresh_interval=Duration(seconds=60),
            flush_interval=Duration(seconds=60),
        ),
    )


def header() -> pb.Header:
    """A header that breaks no rule."""
    return pb.Header(
        process_id=pb.ProcessSpec.ID(zone="zone", suffix="broker"),
        route=pb.Route(
            members=[pb.ProcessSpec.ID(zone="zone", suffix="broker")],
            primary=0,
            endpoints=["http://host:8080"],
        ),
        etcd=pb.Header.Etcd(cluster_id=1, member_id=2, revision=3, raft_term=4),
    )


def fragment() -> pb.Fragment:
    """A fragment that breaks no rule."""
    return pb.Fragment(journal="a/bc", begin=10, end=20, compression_codec=pb.NONE)


def _refused(path: str, check: Callable[[], None]) -> None:
    with pytest.raises(ValidationError) as raised:
        check()
    assert raised.value.field_path == path
    assert "expected" in raised.value.problem


def _labels(**changes: str) -> Callable[[pb.JournalSpec], None]:
    return lambda spec: spec.labels.CopyFrom(
        label_set({name.replace("_", "-"): value for name, value in changes.items()})
    )


def _stores(*stores: str) -> Callable[[pb.JournalSpec], None]:
    def change(spec: pb.JournalSpec) -> None:
        del spec.fragment.stores[:]
        spec.fragment.stores.extend(stores)

    return change


def _set(path: str, value: object) -> Callable[[object], None]:
    def change(message: object) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, last, value)

    return change


def _duration(path: str, **duration: int) -> Callable[[object], None]:
    def change(message: object) -> None:
        for name in path.split("."):
            message = getattr(message, name)
        assert isinstance(message, Duration)
        message.CopyFrom(Duration(**duration))

    return change


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("name", _set("name", "abc")),
        ("name", _set("name", "a" * 513)),
        ("name", _set("name", "ü" * 257)),
        ("name", _set("name", "/absolute")),
        ("name", _set("name", "a//b/c")),
        ("name", _set("name", "abc/")),
        ("name", _set("name", "ab/./c")),
        ("name", _set("name", "ab/../c")),
        ("name", _set("name", "with space")),
        ("name", _set("name", "abcd;meta")),
        ("replication", _set("replication", 0)),
        ("replication", _set("replication", 6)),
        ("labels.labels[0].name", _labels(a="value")),
        ("labels.labels[0].value", _labels(name1="va lue")),
        ("labels.labels[0].value", _labels(name1="v" * 1025)),
        ("labels", _labels(name="flights")),
        ("labels", _labels(prefix="a/")),
        ("labels", _labels(content_type="")),
        ("labels", _labels(content_type="a/b/c")),
        ("labels", _labels(content_type="größe")),
        (
            "labels",
            lambda spec: spec.labels.CopyFrom(
                label_set(("app.gazette.dev/region", "a"), ("app.gazette.dev/region", "b"))
            ),
        ),
        (
            "labels",
            lambda spec: spec.labels.CopyFrom(label_set(("app.gazette.dev/message-type", "T"))),
        ),
        (
            "labels",
            lambda spec: spec.labels.CopyFrom(
                label_set(("content-type", "text/csv"), ("app.gazette.dev/message-subtype", "T"))
            ),
        ),
        ("labels.labels[1]", lambda spec: spec.labels.labels.reverse()),
        (
            "labels.labels[1]",
            lambda spec: spec.labels.CopyFrom(label_set(("app", ""), ("app", "x"))),
        ),
        ("labels.labels[0].prefix", lambda spec: _set("prefix", True)(spec.labels.labels[0])),
        ("fragment.length", _set("fragment.length", 1023)),
        ("fragment.length", _set("fragment.length", (1 << 34) + 1)),
        ("fragment.compression_codec", _set("fragment.compression_codec", 0)),
        ("fragment.compression_codec", _set("fragment.compression_codec", 6)),
        ("fragment.stores[0]", _stores("relative/")),
        ("fragment.stores[0]", _stores("ftp://host/path/")),
        ("fragment.stores[0]", _stores("s3:///path/")),
        ("fragment.stores[1]", _stores("s3://bucket/", "s3://bucket/path")),
        ("fragment.stores[0]", _stores("file://host/path/")),
        ("fragment.stores[0]", _stores("azure-ad://tenant/account/")),
        ("fragment.refresh_interval", _duration("fragment.refresh_interval", nanos=999_999_999)),
        ("fragment.refresh_interval", _duration("fragment.refresh_interval", seconds=86_401)),
        ("fragment.flush_interval", _duration("fragment.flush_interval", seconds=59)),
        ("fragment.path_postfix_template", _set("fragment.path_postfix_template", "{{ .Spool")),
        ("flags", _set("flags", 3)),
        ("flags", _set("flags", 8)),
        ("max_append_rate", _set("max_append_rate", -1)),
        ("suspend.level", _set("suspend.level", 3)),
        ("suspend.offset", _set("suspend.offset", -1)),
    ],
)
def test_journal_spec_with_one_broken_field_names_it(
    path: str, change: Callable[[pb.JournalSpec], None]
) -> None:
    """A YAML file with a mistake is refused by the mistake's path."""
    spec = journal_spec()
    rules.validate_journal_spec(spec)

    change(spec)

    _refused(path, lambda: rules.validate_journal_spec(spec))


def test_journal_spec_that_offloads_decompression_refuses_a_file_store_first() -> None:
    """Only a store that serves HTTP can decompress for the reader."""
    spec = journal_spec()
    spec.fragment.compression_codec = pb.GZIP_OFFLOAD_DECOMPRESSION
    rules.validate_journal_spec(spec)

    spec.fragment.stores.reverse()

    _refused("fragment.compression_codec", lambda: rules.validate_journal_spec(spec))


@pytest.mark.parametrize("name", ["../four", "größe/文字", "a=b/c%20", "x" * 512])
def test_journal_spec_with_an_unusual_but_legal_name_passes(name: str) -> None:
    """The alphabet is Unicode's, and a leading `../` is clean: we must accept what other brokers accept."""
    spec = journal_spec()
    spec.name = name

    rules.validate_journal_spec(spec)


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("journal", pb.ReadRequest(journal="x")),
        ("journal.meta", pb.ReadRequest(journal="abcd;")),
        ("journal.meta", pb.ReadRequest(journal="abcd;a b")),
        ("offset", pb.ReadRequest(journal="abcd", offset=-2)),
        ("end_offset", pb.ReadRequest(journal="abcd", offset=10, end_offset=9)),
        ("end_offset", pb.ReadRequest(journal="abcd", end_offset=-1)),
        (
            "header.etcd.cluster_id",
            pb.ReadRequest(journal="abcd", header=pb.Header(route=pb.Route(primary=-1))),
        ),
    ],
)
def test_read_request_with_one_broken_field_names_it(path: str, request_: pb.ReadRequest) -> None:
    """A reader that asks nonsense is told before a byte moves."""
    _refused(path, lambda: rules.validate_read_request(request_))


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("journal", pb.AppendRequest()),
        ("offset", pb.AppendRequest(journal="abcd", offset=-1)),
        ("content", pb.AppendRequest(journal="abcd", content=b"x")),
        (
            "check_registers.include.labels[0].name",
            pb.AppendRequest(
                journal="abcd", check_registers=pb.LabelSelector(include=label_set(("a", "b")))
            ),
        ),
        (
            "union_registers.labels[0].prefix",
            pb.AppendRequest(
                journal="abcd",
                union_registers=pb.LabelSet(labels=[pb.Label(name="aa", value="b", prefix=True)]),
            ),
        ),
        (
            "subtract_registers.labels[0].name",
            pb.AppendRequest(journal="abcd", subtract_registers=label_set(("a", "b"))),
        ),
        ("suspend", pb.AppendRequest(journal="abcd", suspend=9)),  # type: ignore[arg-type]  # unknown on purpose
    ],
)
def test_first_append_message_with_one_broken_field_names_it(
    path: str, request_: pb.AppendRequest
) -> None:
    """Parameters come first and alone."""
    _refused(path, lambda: rules.validate_append_request(request_, first=True))


@pytest.mark.parametrize("path", ["journal", "offset", "union_registers", "min_etcd_revision"])
def test_later_append_message_with_a_parameter_is_refused(path: str) -> None:
    """After the first message only content may come; an empty message, too: it commits."""
    request = pb.AppendRequest(content=b"x")
    rules.validate_append_request(request, first=False)
    rules.validate_append_request(pb.AppendRequest(), first=False)

    if path == "union_registers":
        request.union_registers.SetInParent()
    else:
        setattr(request, path, "abcd" if path == "journal" else 1)

    _refused(path, lambda: rules.validate_append_request(request, first=False))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("changes[1]", pb.ApplyRequest.Change()),
        ("changes[1]", pb.ApplyRequest.Change(upsert=journal_spec(), delete="abcd")),
        ("changes[1].upsert.name", pb.ApplyRequest.Change(upsert=pb.JournalSpec(name="x"))),
        (
            "changes[1].expect_mod_revision",
            pb.ApplyRequest.Change(upsert=journal_spec(), expect_mod_revision=-2),
        ),
        ("changes[1].expect_mod_revision", pb.ApplyRequest.Change(delete="abcd")),
        ("changes[1].delete", pb.ApplyRequest.Change(delete="x", expect_mod_revision=1)),
        ("changes[1].delete", pb.ApplyRequest.Change(delete="abcd;meta", expect_mod_revision=1)),
    ],
)
def test_apply_request_with_one_broken_change_names_it(
    path: str, change: pb.ApplyRequest.Change
) -> None:
    """In a batch of many changes the message says which."""
    good = pb.ApplyRequest.Change(upsert=journal_spec())

    _refused(path, lambda: rules.validate_apply_request(pb.ApplyRequest(changes=[good, change])))


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("journal", pb.FragmentsRequest()),
        ("end_mod_time", pb.FragmentsRequest(journal="abcd", begin_mod_time=5, end_mod_time=4)),
        ("next_page_token", pb.FragmentsRequest(journal="abcd", next_page_token=-1)),
        ("page_limit", pb.FragmentsRequest(journal="abcd", page_limit=10_001)),
        ("signature_ttl", pb.FragmentsRequest(journal="abcd", signatureTTL=Duration())),
    ],
)
def test_fragments_request_with_one_broken_field_names_it(
    path: str, request_: pb.FragmentsRequest
) -> None:
    """Pages have bounds."""
    _refused(path, lambda: rules.validate_fragments_request(request_))


@pytest.mark.parametrize(
    ("path", "store", "check_delete", "prefix"),
    [
        ("fragment_store", "nope", False, ""),
        ("check_delete_prefix", "s3://b/", False, "a/"),
        ("check_delete_prefix", "s3://b/", True, "a"),
        ("check_delete_prefix", "s3://b/", True, "/a/"),
        ("check_delete_prefix", "s3://b/", True, "a//b/"),
        ("check_delete_prefix", "s3://b/", True, "../a/"),
        ("check_delete_prefix", "s3://b/", True, "../"),
    ],
)
def test_store_health_request_with_one_broken_field_names_it(
    path: str, store: str, check_delete: bool, prefix: str
) -> None:
    """A delete probe must never leave its own directory."""
    request = pb.FragmentStoreHealthRequest(
        fragment_store=store, check_delete=check_delete, check_delete_prefix=prefix
    )

    _refused(path, lambda: rules.validate_store_health_request(request))


def _route(change: Callable[[pb.Route], None]) -> Callable[[pb.Header], None]:
    return lambda message: change(message.route)


def _without_members(route: pb.Route) -> None:
    del route.members[:]
    del route.endpoints[:]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("process_id.zone", _set("process_id.zone", "")),
        ("process_id.suffix", _set("process_id.suffix", "abc")),
        ("route.members[0].zone", lambda message: _set("zone", "")(message.route.members[0])),
        ("route.members", _route(lambda route: route.members.append(route.members[0]))),
        ("route.primary", _set("route.primary", 1)),
        ("route.primary", _set("route.primary", -2)),
        ("route.primary", _route(_without_members)),
        ("route.endpoints", _route(lambda route: route.endpoints.append("http://more:1"))),
        ("route.endpoints[0]", _route(lambda route: route.endpoints.__setitem__(0, "host:8080/"))),
        ("route.endpoints[0]", _route(lambda route: route.endpoints.__setitem__(0, "http://h:x"))),
        ("etcd.cluster_id", _set("etcd.cluster_id", 0)),
        ("etcd.member_id", _set("etcd.member_id", 0)),
        ("etcd.revision", _set("etcd.revision", 0)),
        ("etcd.raft_term", _set("etcd.raft_term", 0)),
    ],
)
def test_header_with_one_broken_field_names_it(
    path: str, change: Callable[[pb.Header], None]
) -> None:
    """Among them the zero-valued route: without members the primary must be -1."""
    message = header()
    rules.validate_header(message)

    change(message)

    _refused(path, lambda: rules.validate_header(message))


def test_header_of_nobody_without_members_passes() -> None:
    """An unrouted header names no process and no member."""
    message = header()
    message.ClearField("process_id")
    _without_members(message.route)
    message.route.primary = -1

    rules.validate_header(message)


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
    ],
)
def test_append_response_with_one_broken_field_names_it(
    path: str, response: pb.AppendResponse
) -> None:
    """A broker that answers nonsense is not believed."""
    _refused(path, lambda: rules.validate_append_response(response))


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
    _refused(path, lambda: rules.validate_read_response(response))


def test_list_response_checks_each_journal() -> None:
    """Only the first message of a snapshot must have a header."""
    listed = pb.ListResponse.Journal(
        spec=journal_spec(), mod_revision=1, create_revision=1, route=pb.Route(primary=-1)
    )
    response = pb.ListResponse(header=header(), journals=[listed])
    rules.validate_list_response(response, first=True)
    response.ClearField("header")
    rules.validate_list_response(response, first=False)

    _refused("header", lambda: rules.validate_list_response(response, first=True))
    response.journals[0].mod_revision = 0
    _refused(
        "journals[0].mod_revision", lambda: rules.validate_list_response(response, first=False)
    )


def test_fragments_response_checks_each_fragment() -> None:
    """A page holds whole fragments and a token that is no negative number."""
    response = pb.FragmentsResponse(
        header=header(), fragments=[pb.FragmentsResponse.ListedFragment(spec=fragment())]
    )
    rules.validate_fragments_response(response)

    response.next_page_token = -1
    _refused("next_page_token", lambda: rules.validate_fragments_response(response))
    response.fragments[0].spec.compression_codec = pb.INVALID
    _refused(
        "fragments[0].spec.compression_codec", lambda: rules.validate_fragments_response(response)
    )
