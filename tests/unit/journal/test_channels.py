"""Endpoints as targets, and channels that come and go."""

from __future__ import annotations

import pytest

from broadsheet.journals.channels import IDLE_SECONDS, ChannelCache
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.endpoints import ChannelTarget, is_loopback, parse_endpoint


class ManualClock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_seconds(self) -> float:
        """Return the time set."""
        return self.now

    def wall_seconds(self) -> float:
        """Return the time set."""
        return self.now


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("http://host:8080", ChannelTarget("host:8080", tls=False)),
        ("http://host", ChannelTarget("host:80", tls=False)),
        ("https://host", ChannelTarget("host:443", tls=True)),
        ("https://host:8443/", ChannelTarget("host:8443", tls=True)),
        ("http://[::1]:8080", ChannelTarget("[::1]:8080", tls=False)),
        ("host:8080", ChannelTarget("host:8080", tls=False)),
        ("unix:///run/broker.sock", ChannelTarget("unix:/run/broker.sock", tls=False)),
        ("unix://machine/run/broker.sock", ChannelTarget("unix:/run/broker.sock", tls=False)),
    ],
)
def test_endpoint_becomes_what_grpc_dials(endpoint: str, target: ChannelTarget) -> None:
    """Every form of an endpoint that a spec or a user may write."""
    assert parse_endpoint(endpoint, may_be_tls=True) == target


def test_tls_that_the_caller_does_not_do_is_refused() -> None:
    """Who writes https wants nobody on the way to read the tokens. Clear text in its place would be a lie."""
    with pytest.raises(ValidationError, match=r"https://host:8443.* asks for TLS.*open_channel"):
        parse_endpoint("https://host:8443")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - only looked at
        ("::", False),
        ("10.0.0.7", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_the_address(host: str, is_local: bool) -> None:
    """What is taken for loopback is served without keys; a name that begins like one is anybody's."""
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "ftp://host", "http://", "http://host:port", "http://host/path", "unix://x"),
        # Each of these was dialed as something else than what stands there: `host:80`.
        *("http://host:0", "http://host:80?to=other", "http://host:80#x", "http://ho\nst:80"),
        *("http://host:80\n", "http://ho\tst", "http://h h:1", "unix:///a\nb", "ho\x00st:1"),
    ],
)
def test_malformed_endpoint_is_refused_by_name(endpoint: str) -> None:
    """A typing error must not become a connection that never comes."""
    with pytest.raises(ValidationError, match="address: expected http://host:port"):
        parse_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["http://user:secret@host:80", "host:80@secret:90", "unix://user:secret@h/x"]
)
def test_endpoint_with_a_user_name_is_refused_and_not_shown(endpoint: str) -> None:
    """Nobody sends such a name, so who writes it is wrong about who can get in; and the error stands in logs."""
    with pytest.raises(ValidationError, match="without a user name") as caught:
        parse_endpoint(endpoint)
    assert "secret" not in str(caught.value)


async def test_idle_member_channels_are_swept_and_the_default_stays() -> None:
    """Members come and go for months; channels to those that went must not pile up."""
    clock = ManualClock()
    cache = ChannelCache("http://127.0.0.1:1", clock=clock)
    default, member = cache.channel(), cache.channel("http://127.0.0.1:2")

    clock.now = IDLE_SECONDS + 1
    await cache.sweep()

    assert cache.channel() is default
    assert cache.state("http://127.0.0.1:2") is None
    assert cache.channel("http://127.0.0.1:2") is not member
    await cache.close()
