"""The files of an application that are sent to executors: those beside the driver's program, and no others."""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from broadsheet.spark_bridge.cluster import application_files as rules
from broadsheet.spark_bridge.cluster.application_files import (
    NotSentError,
    application_files,
    modules_needed,
    program_directories,
)


def _write(root: Path, *names: str, **texts: str) -> None:
    """Write empty files, and modules with texts."""
    for name, text in {
        **dict.fromkeys(names, ""),
        **{f"{one}.py": texts[one] for one in texts},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _main_at(path: Path) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = str(path)
    return main


def test_application_beside_the_program_is_sent_with_what_it_imports_there(tmp_path: Path) -> None:
    """An application of two files must not stop at the second one; the imports of installed modules are left alone."""
    _write(
        tmp_path,
        *(
            "late.py",
            "shared/words.py",
            "shared/unused.py",
            "unused.py",
            "json.py",
            "broadsheet.py",
        ),
        mine="import json, numpy, helpers\nfrom shared.words import split\nfrom broken import x",
        helpers="def create():\n    import late",
        broken="def (",
    )

    found = application_files(["mine"], [tmp_path])

    # Not shared/unused.py: `shared` has no `__init__.py`, so it may be anything. Not what only looks like Python's own.
    assert sorted(found.files) == [
        "broken.py",
        "helpers.py",
        "late.py",
        "mine.py",
        "shared/words.py",
    ]
    assert found.modules == ("broken", "helpers", "late", "mine", "shared")


def test_application_in_a_package_is_sent_with_the_whole_package(tmp_path: Path) -> None:
    """A package may import its parts in ways that no text shows, and read data; caches and hidden files stay."""
    _write(
        tmp_path,
        *("app/__init__.py", "app/words.txt", "beside.py", "other.py"),
        *("app/.env", "app/.git/config", "app/__pycache__/x.pyc"),
    )
    _write(tmp_path / "app/deep", create="import beside")
    (tmp_path / "app/again").symlink_to(tmp_path / "app")

    found = application_files(["app.deep.create"], [tmp_path])

    assert sorted(found.files) == [
        "app/__init__.py",
        "app/deep/create.py",
        "app/words.txt",
        "beside.py",
    ]


def test_application_that_was_sent_already_is_left_alone(tmp_path: Path) -> None:
    """The user's `--py-files` win over what lies beside the program."""
    _write(tmp_path, "program/mine.py", "program/mine2.py", "sent/mine.py")

    found = application_files(
        ["mine", "mine2"], [tmp_path / "program"], sent=[str(tmp_path / "sent")]
    )

    assert sorted(found.files) == ["mine2.py"]


def test_application_that_is_not_beside_the_program_is_not_sent(tmp_path: Path) -> None:
    """What is installed, or what only executors have."""
    assert not application_files(["numpy", "elsewhere.app"], [tmp_path]).files


def test_home_directory_is_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `__init__.py` in a home directory makes a package of it, with keys and mail."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    _write(tmp_path / "me", "__init__.py", "app.py", "ok/__init__.py")

    with pytest.raises(NotSentError, match="home directory"):
        application_files(["me.app"], [tmp_path])

    assert sorted(application_files(["ok"], [tmp_path / "me"]).files) == ["ok/__init__.py"]


def test_compiled_modules_are_not_sent(tmp_path: Path) -> None:
    """No archive can be imported from if it has them."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    _write(tmp_path, "app/__init__.py", f"app/fast{suffix}", f"alone{suffix}")

    for name in ("app", "alone"):
        with pytest.raises(NotSentError, match="compiled"):
            application_files([name], [tmp_path])


@pytest.mark.parametrize(("bound", "value"), [("FILES_MAX", 2), ("BYTES_MAX", 9)])
def test_packages_beyond_the_bounds_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """A package with gigabytes of data would be read into the driver's memory."""
    monkeypatch.setattr(rules, bound, value)
    _write(tmp_path / "app", __init__="#123", a="#123", b="#123")

    with pytest.raises(NotSentError, match="more than"):
        application_files(["app"], [tmp_path])


def test_program_directories_are_those_of_the_script_the_shell_and_pythonpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook has no file, only a working directory; installed packages are none of these, wherever they are."""
    for name in ("script", "shell", "given", "other", "not-imported"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "shell")
    purelib = sysconfig.get_path("purelib")
    environ = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "given"), purelib, f"{tmp_path}/a.zip"])
    }
    path = ["", *(str(tmp_path / one) for one in ("script", "given", "other")), purelib]

    assert program_directories(
        _main_at(tmp_path / "script/run.py"), path=path, environ=environ
    ) == tuple(tmp_path / one for one in ("script", "shell", "given"))
    assert (
        program_directories(
            _main_at(Path(purelib) / "pytest/__main__.py"), path=[purelib], environ={}
        )
        == ()
    )
    assert program_directories(None, path=[""], environ={}) == (tmp_path / "shell",)


def _factory(*parts: object, part: object) -> tuple[object, ...]:
    return (*parts, part)


def _factory_of_main(code: str) -> Callable[..., object]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), namespace)  # noqa: S102 - a cell of a notebook
    made = namespace["create"]
    assert callable(made)
    return made


def test_modules_needed_are_those_of_the_factory_and_of_what_it_is_bound_to() -> None:
    """The driver may pass a name, a function, a class, or a partial call of one."""
    local = ModuleType("beside_this")
    local_class = type("Local", (), {"__module__": "beside_this"})
    here = __name__

    assert modules_needed("a.b:create") == ("a.b",)
    assert modules_needed(_factory) == (here,)
    assert modules_needed(local_class) == ("beside_this",)
    assert modules_needed(functools.partial(_factory, local_class(), part=local_class)) == (
        here,
        "beside_this",
    )
    assert modules_needed(local_class().__init__.__class__) == ()
    assert local.__name__ == "beside_this"


def test_modules_needed_by_a_cell_are_those_that_it_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is defined in `__main__` goes by value, and names what the notebook imported from its directory."""
    for name in ("beside_one", "beside_two"):
        module = ModuleType(name)
        module.Thing = type("Thing", (), {"__module__": name})  # type: ignore[attr-defined] # made here
        monkeypatch.setitem(sys.modules, name, module)
    create = _factory_of_main(
        "import beside_one\nfrom beside_two import Thing\nimport json\nthing = Thing()\n"
        "def create(): return beside_one.Thing(thing)"
    )

    assert {"beside_one", "beside_two"} <= set(modules_needed(create))
    assert "json" not in modules_needed(create)
