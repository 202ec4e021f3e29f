"""Links out of docs/ work on the site as they do on a forge: what they lead to becomes a page.

README.md is the front page. A Markdown file outside docs/ becomes a page as it is, any other file a page that shows its
text, and a folder a page of its README or of what is in it. So a link that leads nowhere fails the strict build.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_REPOSITORY = Path(__file__).resolve().parents[2]
_DOCS = PurePosixPath("docs")
_SOURCE = PurePosixPath("source")
"""The folder of the site for what is outside docs/."""
_FRONT_PAGE = PurePosixPath("README.md")
_FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'(?P<open>\]\(|\b(?:href|src|srcset)=")(?P<target>[^)\s"]+)(?=[)"])')
_LANGUAGES = {
    ".proto": "protobuf",
    ".py": "python",
    ".sql": "sql",
    ".toml": "toml",
    ".yaml": "yaml",
}

_log = get_plugin_logger("repository")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page, and a page for each file outside docs/ that a page or the navigation names."""
    named = re.findall(rf"'{_SOURCE}/([^']+)'", str(config.nav))
    todo = [*files.documentation_pages(), _added(_FRONT_PAGE, files, config)]
    todo += [_added(PurePosixPath(name), files, config) for name in named]
    while todo:
        page = todo.pop()
        for target in _targets(page):
            outside = not target.is_relative_to(_DOCS) or (_REPOSITORY / target).is_dir()
            if outside and files.get_file_from_path(_uri(target)) is None:
                todo.append(_added(target, files, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages of the site."""
    origin = _origin(page.file)

    def on_site(link: re.Match[str]) -> str:
        path, mark, fragment = link["target"].partition("#")
        target = _target(path, origin)
        file = None if target is None else files.get_file_from_path(_uri(target))
        in_html = link["open"] != "]("
        if file is None:
            # MkDocs judges links in Markdown, and leaves HTML as it is.
            if in_html and path and ":" not in path:
                _log.warning(f"{origin}: {path} leads nowhere")
            return link[0]
        folder = PurePosixPath(page.file.src_uri).parent
        to = file.url_relative_to(page.file) if in_html else os.path.relpath(file.src_uri, folder)
        return f"{link['open']}{to}{mark}{fragment}"

    written, at = "", 0
    for fence in _FENCE.finditer(markdown):
        written += _LINK.sub(on_site, markdown[at : fence.start()]) + fence[0]
        at = fence.end()
    return written + _LINK.sub(on_site, markdown[at:])


def _added(target: PurePosixPath, files: Files, config: MkDocsConfig) -> File:
    """Add the page of a file or folder of the repository."""
    path = _REPOSITORY / target
    if path.is_dir() and not (path / "README.md").exists():
        content = _listing(target)
    elif path.is_dir() or path.suffix == ".md":
        content = (path / "README.md" if path.is_dir() else path).read_text(encoding="utf-8")
        if target == _FRONT_PAGE:
            content = f"---\nhide: [navigation]\n---\n{content}"
    else:
        language = _LANGUAGES.get(path.suffix, "text")
        text = path.read_text(encoding="utf-8")
        # Found by a search, it would hide the pages that explain it.
        content = (
            f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n~~~~~~{language}\n{text}\n~~~~~~\n"
        )
    # Links lead here: it may be absent from the navigation.
    level = InclusionLevel.NOT_IN_NAV
    file = File.generated(config, _uri(target), content=content, inclusion=level)
    files.append(file)
    return file


def _listing(folder: PurePosixPath) -> str:
    shown = sorted(
        f"{path.name}{'/' * path.is_dir()}"
        for path in (_REPOSITORY / folder).iterdir()
        if not path.name.startswith((".", "__"))
    )
    return f"# {folder}/\n\n" + "".join(f"* `{name}`\n" for name in shown)


def _targets(page: File) -> Iterator[PurePosixPath]:
    """Yield each file and folder of the repository that a page links to."""
    origin = _origin(page)
    for link in _LINK.finditer(_FENCE.sub("", page.content_string)):
        target = _target(link["target"].partition("#")[0], origin)
        if target is not None:
            yield target


def _target(link: str, origin: PurePosixPath) -> PurePosixPath | None:
    """Return the path in the repository that a relative link leads to; None if there is nothing there."""
    if not link or ":" in link or link.startswith("/"):
        return None
    target = os.path.normpath(origin.parent / link)
    return PurePosixPath(target) if (_REPOSITORY / target).exists() else None


def _uri(target: PurePosixPath) -> str:
    """Return the place in the site of a file or folder of the repository."""
    path = _REPOSITORY / target
    if target in (_FRONT_PAGE, _DOCS):
        return "index.md"
    if path.is_dir():
        target /= "README.md" if (path / "README.md").exists() else "index.md"
    if target.is_relative_to(_DOCS):
        return str(target.relative_to(_DOCS))
    return str(_SOURCE / (target if target.suffix == ".md" else f"{target}.md"))


def _origin(page: File) -> PurePosixPath:
    """Return the path in the repository that a page's links start from."""
    uri = PurePosixPath(page.src_uri)
    if uri == PurePosixPath("index.md"):
        return _FRONT_PAGE
    return uri.relative_to(_SOURCE) if uri.is_relative_to(_SOURCE) else _DOCS / uri
