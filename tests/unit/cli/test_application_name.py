"""An application's name that does not lead to one: a line that says where it stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.cli.application_name import load_application
from broadsheet.runtime.errors import ValidationError

MODULES = {
    "named_well": "from broadsheet.examples.counter.app import Counter\nready = Counter()\n",
    "named_boom": "def make():\n    raise RuntimeError('no database')\n",
    "named_greedy": "def make(database): ...\n",
    "named_broken": "1 +\n",
    "named_raising": "raise OSError('no disk')\n",
    "named_lacking": "import no_such_package\n",
    "named_bare": "class Bare: ...\n",
    "named_extra": "import sqlalchemy\n",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """User modules in the current directory, forgotten afterwards."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["named_well:Counter", "named_well:ready"])
def test_load_application_class_or_instance_is_taken(name: str) -> None:
    """A class is called, an object is taken as it is; the current directory is importable."""
    assert callable(load_application(name).new_store)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("named_well", r"expected package\.module:attribute, got 'named_well'"),
        ("named_well:Nothing", "module named_well has no Nothing"),
        ("no_such_module:x", "No module named 'no_such_module'; modules are looked for in /"),
        ("named_lacking:x", "No module named 'no_such_package'"),
        ("named_broken:x", "named_broken cannot be imported: SyntaxError"),
        ("named_raising:x", r"OSError: no disk \(.*named_raising\.py:1\)"),
        ("named_boom:make", r"make\(\) raised RuntimeError: no database \(.*named_boom\.py:2\)"),
        ("named_greedy:make", "missing 1 required positional argument: 'database'$"),
        ("named_bare:Bare", "is no application: it lacks new_store, message_type"),
    ],
)
def test_load_application_mistakes_say_what_and_where(name: str, problem: str) -> None:
    """Whatever the user's module does, the error is one line that names it."""
    with pytest.raises(ValidationError, match=problem) as caught:
        load_application(name)

    assert caught.value.field_path == "APP"
    assert "\n" not in str(caught.value)


def test_load_application_without_an_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line has the module that needs it once, and the command that installs it."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)

    with pytest.raises(ValidationError) as caught:
        load_application("named_extra:x")

    needs = "APP: named_extra needs sqlalchemy (the extra `sql`): pip install 'sqlalchemy>="
    assert str(caught.value).startswith(needs)
