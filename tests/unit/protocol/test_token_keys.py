"""Keys in files: when they are read again, and what happens to a file that is wrong."""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Capability, Claims, KeyedAuth, keys_from, read_token
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.security.token_keys import FILE_BYTES_MAX, LOOK_SECONDS, WatchedFile
from tests.support.stepping_clock import SteppingClock

OLD, NEW = (
    b64encode(f"{name}-secret, which has 32 bytes or more".encode()).decode()
    for name in ("old", "new")
)
READ = Claims(capability=Capability.READ)


def _parsed(content: bytes) -> str:
    if content.startswith(b"bad"):
        raise ValidationError("words", "expected good ones")
    return content.decode()


def _watched(path: Path, clock: SteppingClock) -> WatchedFile[str]:
    return WatchedFile(path, _parsed, name="words", monotonic_seconds=clock.monotonic_seconds)


def _replace(path: Path, content: str) -> None:
    """Replace a file as editors and Kubernetes do, by another one."""
    other = path.with_name("other")
    other.write_text(content)
    other.replace(path)


def test_a_file_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    """Written in place, replaced, or linked elsewhere: within a second, and without a look at each use."""
    path, clock = tmp_path / "words", SteppingClock()
    path.write_text("one")
    watched = _watched(path, clock)

    _replace(path, "two")
    assert watched.present() == "one", "looked at too early"
    clock.now_seconds += LOOK_SECONDS
    assert watched.present() == "two"
    path.write_text("three!")
    clock.now_seconds += LOOK_SECONDS
    assert watched.present() == "three!"
    (tmp_path / "elsewhere").write_text("four")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    clock.now_seconds += LOOK_SECONDS
    assert watched.present() == "four"


def test_a_wrong_file_leaves_the_former_content_in_use(tmp_path: Path) -> None:
    """Half a write must not lock everybody out, nor let anybody in. The log says once why the change does not count."""
    path, clock = tmp_path / "words", SteppingClock()
    path.write_text("good")
    watched = _watched(path, clock)

    with capture_logs() as events:
        for content in ("bad", "bad", "x" * (FILE_BYTES_MAX + 1)):
            path.write_text(content)
            for _ in range(3):
                clock.now_seconds += LOOK_SECONDS
                assert watched.present() == "good"
        path.unlink()
        clock.now_seconds += LOOK_SECONDS
        assert watched.present() == "good"
        path.write_text("better")
        clock.now_seconds += LOOK_SECONDS
        assert watched.present() == "better"

    refused = [event["cause"] for event in events if event["event"] == "auth.reload_refused"]
    assert len(refused) in (3, 4), "the second writing of the same words may have another time"
    assert "expected good ones" in refused[0]
    assert "cannot read" in refused[-1]
    assert events[-1]["event"] == "auth.reloaded"


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """A shell's <(command) is one. To read it again would wait for ever, and stop the whole server."""
    path, clock = tmp_path / "pipe", SteppingClock()
    os.mkfifo(path)
    # Each of the two waits for the other to open it.
    writer = threading.Thread(target=path.write_bytes, args=(b"words",))
    writer.start()
    watched = _watched(path, clock)
    writer.join()

    clock.now_seconds += LOOK_SECONDS
    assert watched.present() == "words"
    assert watched.present() == "words"


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot read"), (b"bad", "expected good ones"), (b" " * (FILE_BYTES_MAX + 1), "bytes")],
)
def test_a_process_does_not_start_with_a_wrong_file(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    """At the start there is no former content; the error names the setting and the file."""
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ValidationError, match=told) as raised:
        _watched(path, SteppingClock())

    assert raised.value.field_path == "words"
    assert str(path) in str(raised.value)


def test_keys_in_a_file_are_rotated_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan: the new key second, then first, then alone. Tokens of either key pass as long as it is in the file."""
    monkeypatch.setattr("broadsheet.security.token_keys.LOOK_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text(OLD)
    auth = KeyedAuth(keys_from("", path))
    old, new = KeyedAuth(OLD).metadata(READ), KeyedAuth(NEW).metadata(READ)

    auth.verify(old, Capability.READ)
    with pytest.raises(UnauthenticatedError):
        auth.verify(new, Capability.READ)
    _replace(path, f"{OLD}\n{NEW}\n")
    auth.verify(new, Capability.READ)
    KeyedAuth(OLD).verify(auth.metadata(READ), Capability.READ)
    _replace(path, f"{NEW}\n{OLD}\n")
    auth.verify(old, Capability.READ)
    KeyedAuth(NEW).verify(auth.metadata(READ), Capability.READ)
    _replace(path, NEW)
    with pytest.raises(UnauthenticatedError):
        auth.verify(old, Capability.READ)


def test_a_file_takes_the_place_of_keys(tmp_path: Path) -> None:
    """A variable of the environment may hold keys that the command line replaces by a file."""
    assert keys_from(OLD, None) == OLD
    assert keys_from(OLD, tmp_path / "keys") == f"file:{tmp_path}/keys"
    assert keys_from("", None) == ""


@pytest.mark.parametrize("content", [b"%%%", b"\xff\xfe", b"", b"AA=="])
def test_a_file_without_keys_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    """What it holds may be a secret that was encoded in another way."""
    path = tmp_path / "keys"
    path.write_bytes(content)

    with pytest.raises(ValidationError, match="auth_keys") as raised:
        KeyedAuth(keys_from("", path))

    assert "%%%" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "a b", "a\nb", "ä"])
def test_a_token_file_holds_one_token(tmp_path: Path, content: str) -> None:
    """Anything else would be a malformed header, which gRPC reports without a word about the file."""
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    assert read_token(path) == "a.b.c"
    path.write_text(content)

    with pytest.raises(ValidationError, match="token_file"):
        read_token(path)
