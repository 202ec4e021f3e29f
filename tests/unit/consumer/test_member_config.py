"""A member's configuration: every refusal names its field."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from broadsheet.consumer.member.config import MemberConfig
from broadsheet.runtime.errors import ValidationError

GOOD: dict[str, Any] = {
    "root": "/broadsheet/app",
    "suffix": "member-1",
    "broker_address": "http://127.0.0.1:8080",
}


def test_member_config_defaults_suit_one_machine() -> None:
    """Only what has no sensible default is asked for."""
    config = MemberConfig(**GOOD)

    assert str(config.member_id) == "local#member-1"
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes: Spark ships it


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root", "app"),
        ("root", "/app/"),
        ("suffix", "abc"),
        ("suffix", "has#hash"),
        ("zone", ""),
        ("host", ""),
        ("broker_address", "ftp://host"),
        ("port", 70_000),
        ("shard_limit", -1),
        ("hot_standbys_max", -1),
        ("lease_ttl_seconds", 0.5),
        ("watch_delay_seconds", -1.0),
        ("drain_seconds_max", -1.0),
        ("drain_alone_seconds_max", float("nan")),
        ("stop_seconds_max", -1.0),
        ("request_bytes_max", 0),
        ("auth_keys", "not base64!"),
        ("broker_auth_keys", "AA=="),
        ("revoke_predecessors_prefix", ""),
    ],
)
def test_member_config_out_of_bounds_names_the_field(name: str, value: object) -> None:
    """Whoever starts a member reads which flag is wrong, and what would be right."""
    with pytest.raises(ValidationError, match="expected") as raised:
        MemberConfig(**GOOD | {name: value})

    assert raised.value.field_path.startswith(name)


def test_member_config_hides_its_keys() -> None:
    """A configuration that is logged must not give its secrets away."""
    config = MemberConfig(**GOOD, auth_keys="c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")

    assert "c2VjcmV0" not in repr(config)


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"host": "10.0.0.7"}, True),
        ({"host": "member-1.internal"}, True),
        ({"bind_host": "0.0.0.0"}, True),  # noqa: S104 - the point of the test
        ({"host": "10.0.0.7", "bind_host": "127.0.0.1"}, False),
        (
            {"host": "10.0.0.7", "auth_keys": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="},
            False,
        ),
        ({"host": "10.0.0.7", "allow_unauthenticated": True}, False),
        ({}, False),
    ],
)
def test_member_that_others_reach_wants_keys(settings: dict[str, Any], is_refused: bool) -> None:
    """Whoever reaches a member without keys changes its shards and reads their state: that must have been meant."""
    config = MemberConfig(**GOOD | settings)

    if not is_refused:
        config.require_guarded()
        return
    with pytest.raises(ValidationError, match="--allow-unauthenticated") as raised:
        config.require_guarded()
    assert raised.value.field_path == "auth_keys"
