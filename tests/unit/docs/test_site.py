"""The documentation's site: how navigation, links and lists of the files become those of its pages."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._site.list_blocks import misread
from docs._site.nav_folders import expanded
from docs._site.reference import Door, doors_of_packages
from docs._site.repository import on_files, on_page_markdown
from tests.support.documents import REPOSITORY
from tests.unit.docs.test_doors import DOORS


def _config(tmp_path: Path) -> MkDocsConfig:
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nuse_directory_urls: false\n")
    config = load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    config.plugins.run_event("pre_build", config=config)  # As a build does first.
    return config


def _page(config: MkDocsConfig, uri: str, markdown: str) -> Page:
    page = Page(None, File.generated(config, uri, content=markdown), config)
    page.markdown = markdown
    return page


def test_the_reference_has_a_page_for_each_door() -> None:
    """Doors are found by what they are: one that was missed would have no page, and the build would not say so."""
    assert set(DOORS) <= {door.module for door in doors_of_packages()}


def test_what_a_door_exports_has_a_docstring() -> None:
    """A name without one is an empty heading in the reference, of which MkDocs does not warn."""
    exported = [(home, name) for door in doors_of_packages() for name, home in door.homes.items()]

    assert [thing for thing in exported if not _is_described(*thing)] == []


def _is_described(module: str, name: str) -> bool:
    path = REPOSITORY.joinpath(*module.split("."))
    files = (path.with_suffix(".pyi"), path.with_suffix(".py"), path / "__init__.py")
    tree = ast.parse(next(file for file in files if file.exists()).read_text())
    for node, following in pairwise([*tree.body, ast.Pass()]):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                return ast.get_docstring(node) is not None
            case ast.AnnAssign(target=ast.Name(found)) | ast.Assign(targets=[ast.Name(found)]):
                if found == name:
                    return isinstance(following, ast.Expr)
    # Handed on from where it is defined.
    return any(
        _is_described(node.module or "", name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}
    )


def test_a_door_groups_names_by_the_package_that_defines_them() -> None:
    """Fifty names in one list are not read; errors come last, wherever they are defined."""
    homes = {"B": "door.b", "A": "door.room.a", "FooError": "door.room.a", "C": "elsewhere.c"}

    groups = dict(Door("door", "A door.", homes).groups())

    assert groups == {"Door": ["B", "C"], "Room": ["A"], "Errors": ["FooError"]}


def test_a_folder_in_the_navigation_is_its_pages() -> None:
    """Decisions and the reference grow: nobody must list them by hand."""
    nav = [{"Home": "index.md"}, {"Inside": ["a.md", {"Decisions": "adr/"}]}]

    assert expanded(nav, ["index.md", "a.md", "adr/README.md", "adr/1.md"]) == [
        {"Home": "index.md"},
        {"Inside": ["a.md", {"Decisions": ["adr/README.md", "adr/1.md"]}]},
    ]


def test_links_out_of_the_documents_lead_to_pages(tmp_path: Path) -> None:
    """What a forge shows at the end of a link must be on the site: files, folders, READMEs, pictures in HTML."""
    config = _config(tmp_path)
    markdown = (
        "[a](../../Makefile) [b](../../consumer#doors) [c](../../proto) [d](../concepts.md)\n"
        '[e](https://a.example) [f](../none.md) <img src="../pictures/system.svg">\n'
        "```\n[g](../../Makefile)\n```\n"
    )
    page = _page(config, "tutorials/x.md", markdown)
    picture = File.generated(config, "pictures/system.svg", content="")
    concepts = File.generated(config, "concepts.md", content="")

    files = on_files(Files([page.file, picture, concepts]), config)
    rewritten = on_page_markdown(markdown, page, config, files)

    assert rewritten == (
        "[a](../source/Makefile.md) [b](../source/consumer/README.md#doors) "
        "[c](../source/proto/index.md) [d](../concepts.md)\n"
        '[e](https://a.example) [f](../none.md) <img src="../pictures/system.svg">\n'
        "```\n[g](../../Makefile)\n```\n"
    )
    shown = files.get_file_from_path("source/Makefile.md")
    assert shown is not None
    assert (REPOSITORY / "Makefile").read_text() in shown.content_string


def test_links_of_the_front_page_lead_into_the_documents(tmp_path: Path) -> None:
    """README names documents by their place in the repository, and is beside them on the site."""
    config = _config(tmp_path)
    files = Files([File.generated(config, "concepts.md", content="")])
    page = _page(config, "index.md", '[a](docs/concepts.md#x) <a href="docs/concepts.md">b</a>')

    files = on_files(files, config)
    rewritten = on_page_markdown(page.markdown or "", page, config, files)

    assert rewritten == '[a](concepts.md#x) <a href="concepts.html">b</a>'


@pytest.mark.parametrize(
    ("markdown", "lines"),
    [
        ("* item\n  goes on\n* next\n\nText\n\n* other\n", []),
        ("# Heading\n* item\nlazy\n* next\n", []),
        ("* item\n\n    ```\n  code\n    ```\n\n* next\n", []),
        ("* item\n\n  | a |\n  |---|\n", [3]),
        ("* item\n  * nested\n", [2]),
        ("Text\n* no item\n", [2]),
        ("* item\n\n    of the item\n* no item\n", [4]),
    ],
)
def test_lists_that_the_site_reads_otherwise_are_named(markdown: str, lines: list[int]) -> None:
    """Python-Markdown ends a list silently where a forge goes on: on the site a table would be text."""
    assert [number for number, _ in misread(markdown)] == lines
