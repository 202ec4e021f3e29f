"""A worker's channels: shared, bounded, and closed when idle."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import TlsConfig, tls_files
from broadsheet.spark_bridge.routing.channels import CHANNELS_MAX, IDLE_SECONDS, WorkerChannels
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import eventually_sync


class Watch:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
def watch() -> Watch:
    """At some time."""
    return Watch()


@pytest.fixture
def channels(watch: Watch) -> WorkerChannels:
    """Without any yet. Nobody listens at the endpoints used, and nobody is called."""
    return WorkerChannels(monotonic_seconds=watch)


def use(channels: WorkerChannels, endpoint: str) -> grpc.Channel:
    """Borrow and give back."""
    with channels.borrowed(endpoint) as channel:
        return channel


def test_channel_is_shared_by_calls_to_one_endpoint(channels: WorkerChannels) -> None:
    """A task after another finds the connection."""
    assert use(channels, "http://127.0.0.1:1") is use(channels, "http://127.0.0.1:1")


def test_channel_that_may_have_been_idle_is_not_used_again(
    channels: WorkerChannels, watch: Watch
) -> None:
    """It would keep its next connection for ever."""
    first = use(channels, "http://127.0.0.1:1")
    watch.now += IDLE_SECONDS / 2
    assert use(channels, "http://127.0.0.1:1") is first
    _, release = channels.borrow("http://127.0.0.1:1")
    watch.now += IDLE_SECONDS + 1
    assert use(channels, "http://127.0.0.1:1") is first, "a call is under way"
    release()

    watch.now += IDLE_SECONDS + 1
    assert use(channels, "http://127.0.0.1:1") is not first
    channels.close()


def test_renewed_certificate_takes_another_connection_and_ends_no_call(
    channels: WorkerChannels, tmp_path: Path
) -> None:
    """A worker that is used for days outlives its certificate, and a call in progress outlives the renewal."""
    authority = CertificateAuthority(tmp_path)
    tls = authority.tls("member", "127.0.0.1")
    files = tls_files(tls)
    held, release = channels.borrow("https://127.0.0.1:1", tls)
    assert channels.borrow("https://127.0.0.1:1", tls)[0] is held
    former = files.present()
    authority.certificate("member", "127.0.0.1")
    eventually_sync(lambda: files.present() is not former, timeout_seconds=300)

    with channels.borrowed("https://127.0.0.1:1", tls) as renewed:
        assert renewed is not held
    assert list(channels.endpoints) == ["https://127.0.0.1:1"]
    held.unary_unary("/a/b")  # A closed channel would refuse.
    release()
    channels.close()


def test_files_that_cannot_be_used_are_named(channels: WorkerChannels, tmp_path: Path) -> None:
    """An executor on which a file is missing must say which."""
    tls = TlsConfig(ca_file=tmp_path / "missing")
    with pytest.raises(ValidationError, match=r"tls\.ca_file: cannot read .*missing"):
        channels.borrow("https://127.0.0.1:1", tls)
    assert not channels.endpoints


def test_idle_channel_goes_when_another_is_opened(channels: WorkerChannels, watch: Watch) -> None:
    """Members come and go with their addresses; but what is in use stays, however long the call takes."""
    use(channels, "http://127.0.0.1:1")
    _, release = channels.borrow("http://127.0.0.1:2")
    watch.now += IDLE_SECONDS + 1
    use(channels, "http://127.0.0.1:3")
    assert list(channels.endpoints) == ["http://127.0.0.1:2", "http://127.0.0.1:3"]

    release()
    watch.now += IDLE_SECONDS + 1
    use(channels, "http://127.0.0.1:4")

    assert list(channels.endpoints) == ["http://127.0.0.1:4"]
    channels.close()


def test_channels_are_bounded_the_one_unused_for_longest_goes(
    channels: WorkerChannels, watch: Watch
) -> None:
    """A job over thousands of members must not use up a process' file descriptors."""
    for port in range(1, CHANNELS_MAX + 3):
        watch.now += 0.001
        use(channels, f"http://127.0.0.1:{port}")

    assert len(channels.endpoints) == CHANNELS_MAX
    assert channels.endpoints[0] == "http://127.0.0.1:3"
    channels.close()
    assert not channels.endpoints


def test_what_is_no_address_is_refused(channels: WorkerChannels) -> None:
    """With words that name it."""
    with pytest.raises(ValidationError):
        channels.borrow("ftp://host:1")
