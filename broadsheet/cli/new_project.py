"""Projects that are made of templates: names, folders, and the files of a new one."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from typing import Final

from broadsheet.cli.project import FILE, read_project
from broadsheet.runtime.errors import ValidationError

TEMPLATES: Final = Path(__file__).parents[1] / "examples" / "templates"
"""A folder for each template, which is a project called `hello_` and the folder's name."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_NAME_CHARACTERS_MAX: Final = 40
_RENAMED: Final = {"gitignore": ".gitignore"}
"""Files whose names would mean something here, too."""
_KEPT: Final = frozenset({".git", ".venv"})
"""What a folder that counts as empty may have."""
PASSED_OVER: Final = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"})


def template_names() -> tuple[str, ...]:
    """Return the names of all templates, the default first."""
    found = sorted(each.parent.name for each in TEMPLATES.glob(f"*/{FILE}"))
    return ("counter", *(name for name in found if name != "counter"))


def require_name(name: str) -> None:
    """Refuse a name that no package, or no journal, can have.

    Raises:
        ValidationError: the name is refused; the error suggests another one, if there is one.
    """
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS_MAX:
        wanted = (
            re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_NAME_CHARACTERS_MAX].strip("_")
        )
        hint = f", such as {wanted}" if _NAME.fullmatch(wanted) else ""
        raise ValidationError(
            "NAME",
            f"{name!r} cannot be the name of a package: expected at most {_NAME_CHARACTERS_MAX} small letters and "
            f"digits, in words joined by underscores{hint}",
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ValidationError("NAME", f"{name!r} is a word of Python: choose another name")
    if name in sys.stdlib_module_names or name in {"test", "tests"}:
        raise ValidationError("NAME", f"Python has a module {name}: choose another name")
    installed = importlib.util.find_spec(name)
    # A folder without modules, such as one that is to become the project, has no loader.
    if installed is not None and installed.loader is not None:
        raise ValidationError(
            "NAME",
            f"a package {name} is installed, which the project would hide: choose another name",
        )


def require_empty(directory: Path) -> None:
    """Refuse a folder that has files.

    Raises:
        ValidationError: it has; or it is a file.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ValidationError("NAME", f"{directory} is a file: choose another name")
    there = sorted(each.name for each in directory.iterdir() if each.name not in _KEPT)
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise ValidationError(
            "NAME",
            f"the folder {directory} is not empty, it has {', '.join(there[:3])}{more}: choose another name, or "
            "--directory",
        )


def files_of(template: str, name: str) -> dict[Path, str]:
    """Return the files of a project, by their paths in it, in order."""
    root, placeholder = TEMPLATES / template, f"hello_{template}"
    found = {}
    for source in sorted(each for each in root.rglob("*") if each.is_file()):
        path = source.relative_to(root)
        if PASSED_OVER & {*path.parts}:
            continue
        parts = [part.replace(placeholder, name) for part in path.parts]
        parts[-1] = _RENAMED.get(parts[-1], parts[-1])
        text = source.read_text(encoding="utf-8").replace(placeholder, name)
        found[Path(*parts)] = _without_summary(text) if path.name == FILE else text
    return found


def _without_summary(text: str) -> str:
    """Return a project's file without what `shardctl init --help` says of its template."""
    return re.sub(r"^summary = .*\n", "", text, flags=re.MULTILINE)


def summaries() -> str:
    """Return a line for each template: its name, and what it is."""
    lines = []
    for name in template_names():
        project = read_project(TEMPLATES / name)
        lines.append(f"  {name:8}  {project.summary if project else ''}")
    return "\n".join(lines)
