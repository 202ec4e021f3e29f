"""What several Spark applications at one root must have in common, and the address by which they find each other."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from broadsheet.consumer.member.config import MemberConfig
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.cluster.joining import (
    ClusterAddress,
    DriverRecord,
    Place,
    differences,
    driver_record,
    place_of,
)

DRIVER = DriverRecord(
    application_id="app-1", broker="http://b:8080", is_embedded=False, zone="app-1"
)


@pytest.mark.parametrize(
    ("url", "endpoints", "root"),
    [
        ("broadsheet://10.0.0.5:2379,etcd-2:2379/a/b", ("10.0.0.5:2379", "etcd-2:2379"), "/a/b"),
        ("broadsheets://[::1]:2379/a", ("https://[::1]:2379",), "/a"),
    ],
)
def test_cluster_address_as_url_is_read_back(
    url: str, endpoints: tuple[str, ...], root: str
) -> None:
    """The address goes by hand, file or pipe from one driver to the other, and TLS must not get lost on the way."""
    address = ClusterAddress.parse(f" {url}\n")

    assert address == ClusterAddress(endpoints=endpoints, root=root)
    assert address.url() == url


@pytest.mark.parametrize(
    "url",
    ["", "/a/b", "http://h:1/a", "broadsheet://h:1", "broadsheet://h:1/", "broadsheet:///a", "x"],
)
def test_cluster_address_that_is_none_is_refused_with_the_form_of_one(url: str) -> None:
    """A driver that took a wrong address for a new cluster would start an empty one beside the user's."""
    with pytest.raises(ValidationError, match=r"^join: expected"):
        ClusterAddress.parse(url)


@pytest.mark.parametrize("endpoints", [("unix:/tmp/etcd",), ("h:1", "https://h:2")])
def test_cluster_address_that_no_url_can_tell_is_refused(endpoints: tuple[str, ...]) -> None:
    """A socket of this machine, or endpoints of which only some speak TLS."""
    with pytest.raises(ValidationError, match=r"etcd\.endpoints"):
        ClusterAddress(endpoints=endpoints, root="/a").url()


def test_place_of_a_url_keeps_what_is_given_beside_it() -> None:
    """Credentials of etcd are in the session's conf; the URL adds the root, and endpoints where none are given."""
    given = Place(root="", etcd=("other:1",), broker="http://b")

    assert place_of("broadsheet://h:1/a", given) == Place(
        root="/a", etcd=("other:1",), broker="http://b"
    )
    assert place_of("broadsheet://h:1/a", Place(root="/a", etcd=None, broker=None)) == Place(
        root="/a", etcd=("h:1",), broker=None
    )


@pytest.mark.parametrize(
    ("join", "given", "field"),
    [
        (False, Place(root="", etcd=None, broker=None), "root"),
        (True, Place(root="/a", etcd=None, broker="http://b"), "etcd"),
        (True, Place(root="/a", etcd=("h:1",), broker=None), "broker"),
        ("broadsheet://h:1/a", Place(root="/b", etcd=None, broker=None), "root"),
    ],
)
def test_place_that_others_could_not_share_is_refused(
    join: bool | str, given: Place, field: str
) -> None:
    """An embedded etcd or broker dies with its driver, and takes the other application's shards along."""
    with pytest.raises(ValidationError, match=f"^{field}: expected"):
        place_of(join, given)


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ({"is_embedded": True}, "start both on their own"),
        ({"zone": ""}, "start it with join=True"),
        ({"is_signed": True}, "do ask for signed calls"),
        ({"is_tls": True}, "do speak TLS"),
        ({"key_ids": ("c",)}, "none of its auth_keys"),
    ],
)
def test_settings_with_which_members_cannot_work_together_are_refused(
    theirs: dict[str, Any], told: str
) -> None:
    """Each says what to do: the user sees it in the second driver, and often must change the first."""
    ours = msgspec.structs.replace(DRIVER, application_id="app-2", zone="app-2", key_ids=("a", "b"))

    found = differences(ours, msgspec.structs.replace(DRIVER, **theirs))

    assert [text for text in found.refused if told in text] == list(found.refused) != []


def test_settings_that_a_rolling_change_has_are_told_and_not_refused() -> None:
    """Another release, application or policy is what a successor is started for."""
    ours = msgspec.structs.replace(
        DRIVER, application_id="app-2", release="2", application="m:f", key_ids=("a", "b")
    )
    theirs = msgspec.structs.replace(DRIVER, release="1", application="m:g", key_ids=("b", "c"))

    found = differences(ours, theirs)

    assert found.refused == ()
    assert [text.partition(":")[0] for text in found.told] == ["application", "release", "zone"]


def test_driver_record_shows_no_secret() -> None:
    """It is stored where each reader of etcd sees it: keys are named by ids that tell nothing of them."""
    key = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="
    record = driver_record(
        MemberConfig(
            root="/a", suffix="suffix", broker_address="http://b:1", auth_keys=f"{key},AA=="
        ),
        application_id="app-1",
        application=functools.partial(FlightsApplication, "postgresql://user:password@h/d"),
        zone="app-1",
        is_embedded=False,
    )

    text = msgspec.json.encode(record).decode()

    assert len(record.key_ids) == 1
    assert record.application == "broadsheet.examples.flights.app:FlightsApplication"
    assert key[:12] not in text
    assert "password" not in text
