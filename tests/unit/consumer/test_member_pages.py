"""Whose pages may call a member, and whom a page may call."""

from __future__ import annotations

import pytest

from broadsheet.consumer.live_page.member_pages import (
    LEFT_SECONDS_MAX,
    PRESENT_MAX,
    MemberPages,
)
from broadsheet.consumer.live_page.routes import content_security_policy
from tests.support.stepping_clock import SteppingClock


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "http://m",
        "ftp://m:1",
        "http://m:1/path",
        "http://user@m:1",
        "http://m:1; script-src *",
        "http://m:1 *",
        "http://[::1]:1",
        "javascript:alert(1)//:1",
    ],
)
def test_what_is_no_origin_is_in_no_policy(endpoint: str) -> None:
    """What a key says becomes part of a header that keeps scripts out: a space there would let them in."""
    pages = MemberPages(SteppingClock())

    pages.take([("a", endpoint), ("a", "https://two.example:9090")])

    assert pages.present() == ["https://two.example:9090"]
    assert not pages.is_of_member(endpoint)
    assert "connect-src 'self' https://two.example:9090;" in content_security_policy(
        pages.present()
    )


def test_policy_names_some_members_of_every_zone() -> None:
    """A page whose zone fails goes on in another, and a thousand members are no header."""
    pages = MemberPages(SteppingClock())
    many = [("a", f"http://a:{number + 1}") for number in range(1_000)]
    pages.take([*many, ("b", "http://b:1"), ("c", "http://c:1")])

    present = pages.present()

    assert present[:4] == ["http://a:1", "http://b:1", "http://c:1", "http://a:2"]
    assert len(present) == PRESENT_MAX
    assert pages.is_of_member("http://a:1000")


def test_pages_of_a_member_that_left_go_on_for_an_hour() -> None:
    """Its reader goes on at another member; in an hour the address may be another program's."""
    clock = SteppingClock()
    pages = MemberPages(clock)
    pages.take([("a", "http://a:1"), ("a", "http://a:2")])

    pages.take([("a", "http://a:2")])

    assert pages.present() == ["http://a:2"]
    clock.now_seconds += LEFT_SECONDS_MAX - 1
    assert pages.is_of_member("http://a:1")
    clock.now_seconds += 1
    assert not pages.is_of_member("http://a:1")
    assert not pages.is_of_member("http://a:3")
