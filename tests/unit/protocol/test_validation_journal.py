"""Each rule of journal specs and of the journal service's requests: one broken field, one error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.wire import journal_pb2 as pb, validation_journal as rules
from broadsheet.wire.labels import label_set
from broadsheet.wire.validation_journal_spec import validate_journal_spec
from tests.support.valid_messages import check_refused, journal_spec, set_field


def _labels(**changes: str) -> Callable[[pb.JournalSpec], None]:
    return lambda spec: spec.labels.CopyFrom(
        label_set({name.replace("_", "-"): value for name, value in changes.items()})
    )


def _stores(*stores: str) -> Callable[[pb.JournalSpec], None]:
    def change(spec: pb.JournalSpec) -> None:
        del spec.fragment.stores[:]
        spec.fragment.stores.extend(stores)

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
        ("name", set_field("name", "abc")),
        ("name", set_field("name", "a" * 513)),
        ("name", set_field("name", "ü" * 257)),
        ("name", set_field("name", "/absolute")),
        ("name", set_field("name", "a//b/c")),
        ("name", set_field("name", "abc/")),
        ("name", set_field("name", "ab/./c")),
        ("name", set_field("name", "ab/../c")),
        ("name", set_field("name", "with space")),
        ("name", set_field("name", "abcd;meta")),
        ("replication", set_field("replication", 0)),
        ("replication", set_field("replication", 6)),
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
        ("labels.labels[0].prefix", lambda spec: set_field("prefix", True)(spec.labels.labels[0])),
        ("fragment.length", set_field("fragment.length", 1023)),
        ("fragment.length", set_field("fragment.length", (1 << 34) + 1)),
        ("fragment.compression_codec", set_field("fragment.compression_codec", 0)),
        ("fragment.compression_codec", set_field("fragment.compression_codec", 6)),
        ("fragment.stores[0]", _stores("relative/")),
        ("fragment.stores[0]", _stores("ftp://host/path/")),
        ("fragment.stores[0]", _stores("s3:///path/")),
        ("fragment.stores[1]", _stores("s3://bucket/", "s3://bucket/path")),
        ("fragment.stores[0]", _stores("file://host/path/")),
        ("fragment.stores[0]", _stores("azure-ad://tenant/account/")),
        ("fragment.refresh_interval", _duration("fragment.refresh_interval", nanos=999_999_999)),
        ("fragment.refresh_interval", _duration("fragment.refresh_interval", seconds=86_401)),
        ("fragment.flush_interval", _duration("fragment.flush_interval", seconds=59)),
        (
            "fragment.path_postfix_template",
            set_field("fragment.path_postfix_template", "{{ .Spool"),
        ),
        ("flags", set_field("flags", 3)),
        ("flags", set_field("flags", 8)),
        ("max_append_rate", set_field("max_append_rate", -1)),
        ("suspend.level", set_field("suspend.level", 3)),
        ("suspend.offset", set_field("suspend.offset", -1)),
    ],
)
def test_journal_spec_with_one_broken_field_names_it(
    path: str, change: Callable[[pb.JournalSpec], None]
) -> None:
    """A YAML file with a mistake is refused by the mistake's path."""
    spec = journal_spec()
    validate_journal_spec(spec)

    change(spec)

    check_refused(path, lambda: validate_journal_spec(spec))


def test_journal_spec_that_offloads_decompression_refuses_a_file_store_first() -> None:
    """Only a store that serves HTTP can decompress for the reader."""
    spec = journal_spec()
    spec.fragment.compression_codec = pb.GZIP_OFFLOAD_DECOMPRESSION
    validate_journal_spec(spec)

    spec.fragment.stores.reverse()

    check_refused("fragment.compression_codec", lambda: validate_journal_spec(spec))


@pytest.mark.parametrize("name", ["../four", "größe/文字", "a=b/c%20", "x" * 512])
def test_journal_spec_with_an_unusual_but_legal_name_passes(name: str) -> None:
    """The alphabet is Unicode's, and a leading `../` is clean: we must accept what other brokers accept."""
    spec = journal_spec()
    spec.name = name

    validate_journal_spec(spec)


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
    check_refused(path, lambda: rules.validate_read_request(request_))


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
    check_refused(path, lambda: rules.validate_append_request(request_, first=True))


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

    check_refused(path, lambda: rules.validate_append_request(request, first=False))


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

    check_refused(
        path, lambda: rules.validate_apply_request(pb.ApplyRequest(changes=[good, change]))
    )


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
    check_refused(path, lambda: rules.validate_fragments_request(request_))


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

    check_refused(path, lambda: rules.validate_store_health_request(request))
