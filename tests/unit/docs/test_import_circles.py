"""Imports of the product run one way: no file needs another that needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tests.support.sources import our_modules

_IMPORT = re.compile(r"^ *from broadsheet\.([\w.]+) import (\([^)]*\)|.+)$", re.MULTILINE)
"""An import of ours, anywhere in a file, also for types alone."""


def _modules() -> dict[str, str]:
    """Return the sources of our product by module, without the doors, which import what they show."""
    return {
        path.removesuffix(".py").removeprefix("broadsheet/").replace("/", "."): source
        for path, source in our_modules()
        if not path.startswith(("tests/", "bench/", "examples/"))
        # The latter explains doors by an import in its docstring.
        and not path.endswith(("__init__.py", "runtime/door.py"))
    }


def _imported(source: str) -> Iterator[str]:
    """Yield what a module may import: `package.module`, and `package.module.name` of each name."""
    for module, names in _IMPORT.findall(source):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def circles(imports: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that are in a circle, or between two."""
    left = dict(imports)
    for _ in imports:
        ends = {name for name, needed in left.items() if not needed & left.keys()}
        needed_by_none = left.keys() - {each for needed in left.values() for each in needed}
        if not ends | needed_by_none:
            break
        left = {name: needed for name, needed in left.items() if name not in ends | needed_by_none}
    return set(left)


def test_files_of_the_product_import_in_one_direction() -> None:
    """A circle is one concept in two files, or a file of two concepts, and breaks when the order of imports changes."""
    modules = _modules()
    imports = {
        name: {each for each in _imported(source) if each in modules and each != name}
        for name, source in modules.items()
    }

    assert len(imports) > 400
    assert circles(imports) == set()


def test_circle_is_found_and_what_leads_to_it_is_not() -> None:
    """The rule names the files to look at."""
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str](), "c2": {"d"}}

    assert circles(imports) == {"b", "c"}
