"""A Java is run before it is believed, and a trimmed one gets its shim."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broadsheet.spark_bridge.errors import JavaNotFoundError
from broadsheet.spark_bridge.java import find_java

_JAVA = """\
#!/bin/sh
for argument do
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] && {vector}
done
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
echo "args: $*"
"""


def _make_java(home: Path, *, version: str, trimmed: bool = False) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    vector = "{ echo 'Module jdk.incubator.vector not found' >&2; exit 1; }" if trimmed else ":"
    java.write_text(_JAVA.format(home=home, version=version, vector=vector))
    java.chmod(0o755)
    return home


def test_find_java_java_home_fits_is_taken(tmp_path: Path) -> None:
    """JAVA_HOME wins over PATH: the user said so."""
    chosen = _make_java(tmp_path / "chosen", version="21")
    other = _make_java(tmp_path / "other", version="17")

    java = find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})

    assert (java.home, java.version, java.shimmed) == (chosen, 21, False)


def test_find_java_java_home_too_old_path_is_taken(tmp_path: Path) -> None:
    """An old Java is passed over, not failed upon: another may do. `1.8` is how Java 8 names itself."""
    old = _make_java(tmp_path / "old", version="1.8")
    new = _make_java(tmp_path / "new", version="17")

    java = find_java({"JAVA_HOME": str(old), "PATH": f"{new / 'bin'}:/usr/bin:/bin"})

    assert (java.home, java.version) == (new, 17)


def test_find_java_trimmed_runtime_shim_drops_the_argument(tmp_path: Path) -> None:
    """Spark always asks for a module that trimmed runtimes lack; all else of the command arrives whole."""
    trimmed = _make_java(tmp_path / "trimmed", version="21", trimmed=True)
    (trimmed / "lib").mkdir()

    java = find_java({"JAVA_HOME": str(trimmed), "PATH": ""}, shims_dir=tmp_path / "shims")

    assert java.shimmed
    assert (java.home / "lib").resolve() == trimmed / "lib"
    command = [
        str(java.home / "bin" / "java"),
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "Main",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "args: -Da=b c Main\n"


def test_find_java_shim_made_twice_is_the_same(tmp_path: Path) -> None:
    """Every start of a driver makes the shim again; that must not pile up or fail."""
    trimmed = _make_java(tmp_path / "trimmed", version="21", trimmed=True)
    environ = {"JAVA_HOME": str(trimmed), "PATH": ""}

    first = find_java(environ, shims_dir=tmp_path / "shims")
    second = find_java(environ, shims_dir=tmp_path / "shims")

    assert first == second


def test_find_java_java_home_is_a_shim_is_taken_as_it_is(tmp_path: Path) -> None:
    """A session sets JAVA_HOME to the shim for its children: they must not look behind it."""
    trimmed = _make_java(tmp_path / "trimmed", version="21", trimmed=True)
    first = find_java({"JAVA_HOME": str(trimmed), "PATH": ""}, shims_dir=tmp_path / "shims")

    second = find_java({"JAVA_HOME": str(first.home), "PATH": ""}, shims_dir=tmp_path / "others")

    assert second.home == first.home


def test_find_java_none_error_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has no Java must learn what was found, what is needed, and how to get it."""
    old = _make_java(tmp_path / "old", version="11")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path / "empty")})

    message = str(caught.value)
    assert f"JAVA_HOME ({old}/bin/java): is Java 11" in message
    assert "Java 17 or later" in message
    assert "openjdk-17-jre-headless" in message
