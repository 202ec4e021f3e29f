"""Habits that CONTRIBUTING asks for, held to by tests: news fragments, hooks, and commits that blame passes over."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.documents import REPOSITORY

_CHANGES = REPOSITORY / "changes"
_KINDS = tuple(
    kind["directory"]
    for kind in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["towncrier"][
        "type"
    ]
)
_NAME = re.compile(rf"[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(_KINDS)})\.md")
_BINARIES = Path(sys.executable).parent


def problem_of(name: str, text: str) -> str | None:
    """Return what is wrong with a fragment, or None."""
    if _NAME.fullmatch(name) is None:
        return f"{name}: expected words-with-hyphens.KIND.md, KIND one of {', '.join(_KINDS)}"
    if not text.strip() or "\n\n" in text.strip():
        return f"{name}: expected one paragraph"
    if re.match(r"\s*(?:[*#>|-]|\d+\.)\s", text):
        return f"{name}: expected a paragraph, without a bullet or a heading"
    if re.search(r"\]\((?!\.\./|https://)", text):
        return f"{name}: links are relative to changes/, such as ../docs/stores.md"
    return None


def test_fragments_have_a_kind_in_their_name_and_one_paragraph() -> None:
    """Towncrier leaves a file whose name has no kind out, and its news is lost."""
    fragments = [
        path for path in _CHANGES.iterdir() if path.name not in ("README.md", "template.md.jinja")
    ]

    assert [found for path in fragments if (found := problem_of(path.name, path.read_text()))] == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("stores.fixed.md", "A store [opens](../docs/stores.md).\nAlways.\n", None),
        ("stores.md", "A store opens.", "expected words-with-hyphens.KIND.md"),
        ("stores.improved.md", "A store opens.", "KIND one of security, added"),
        ("Stores.fixed.md", "A store opens.", "expected words-with-hyphens"),
        ("stores.fixed.md", " \n", "expected one paragraph"),
        ("stores.fixed.md", "A store opens.\n\nAnd closes.", "expected one paragraph"),
        ("stores.fixed.md", "* A store opens.", "without a bullet"),
        ("stores.fixed.md", "[Opens](docs/stores.md).", "links are relative to changes/"),
    ],
)
def test_fragment_with_a_fault_is_named(name: str, text: str, problem: str | None) -> None:
    """The rule finds what it is to find: no fragment at all would pass, too."""
    found = problem_of(name, text)

    assert found is None if problem is None else found is not None and problem in found


def test_release_notes_fold_fragments_by_kind_and_keep_what_was_there(tmp_path: Path) -> None:
    """A release writes one section, ordered by kind, with links that hold in CHANGELOG, and removes the fragments."""
    shutil.copytree(_CHANGES, tmp_path / "changes")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    before = (tmp_path / "CHANGELOG.md").read_text().partition("<!-- release notes start -->\n")
    (tmp_path / "changes" / "z-first.fixed.md").write_text("A [store](../docs/stores.md)\nopens.\n")
    (tmp_path / "changes" / "z-last.security.md").write_text("A token ends.\n")

    subprocess.run(
        [_BINARIES / "towncrier", "build", "--yes", "--version", "9.9", "--date", "2030-01-02"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )

    after = (tmp_path / "CHANGELOG.md").read_text()
    assert after.startswith("".join(before[:2]))
    assert after.endswith(before[2].strip() + "\n")
    section = after[len("".join(before[:2])) : -len(before[2].strip()) - 1]
    assert "## 9.9 (2030-01-02)\n\n### Security\n" in section
    assert "* A [store](docs/stores.md)\n  opens.\n" in section
    assert section.index("* A token ends.") < section.index("* A [store]")
    assert "\n\n\n" not in section.strip()
    left = {path.name for path in (tmp_path / "changes").iterdir()}
    assert left == {"README.md", "template.md.jinja"}


def test_hooks_are_valid_and_include_what_lint_runs() -> None:
    """A hook that names a tool or target that is gone fails at a commit; one that is missing fails in CI instead."""
    config = REPOSITORY / ".pre-commit-config.yaml"
    subprocess.run([_BINARIES / "pre-commit", "validate-config", config], check=True)
    hooks = yaml.safe_load(config.read_text())["repos"][0]["hooks"]
    entries = [hook["entry"].split() for hook in hooks]
    makefile = (REPOSITORY / "Makefile").read_text()
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert lint is not None

    for program, *arguments in entries:
        if program == "make":
            assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), arguments
        else:
            assert (_BINARIES / Path(program).name).exists(), program
    hooked = {(Path(program).name, *arguments[:1]) for program, *arguments in entries}
    for line in lint[1].splitlines():
        program, *arguments = line.strip().removeprefix("$(BIN)/").split()
        assert any(name == program and [*rest] == arguments[:1] for name, *rest in hooked), line


def test_nightly_targets_name_no_file_below_a_folder_that_they_name() -> None:
    """Pytest takes the folder alone then, and only what is named `test_*.py` in it: a thousand kills were not run."""
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = sorted(set(re.findall(r"^nightly-[a-z]+", makefile, re.MULTILINE)))
    assert targets
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", *targets],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    for line in printed.replace("\\\n", " ").splitlines():
        paths = (
            [word for word in line.split() if (REPOSITORY / word).exists()]
            if "pytest" in line
            else []
        )
        folders = {path for path in map(Path, paths) if (REPOSITORY / path).is_dir()}
        assert not [path for path in paths if folders & set(Path(path).parents)], line


def test_hooks_name_local_tools_only() -> None:
    """Versions are pinned once, in requirements/dev.txt: another version would judge otherwise than `make lint`."""
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())

    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    assert {hook["language"] for hook in config["repos"][0]["hooks"]} == {"system"}


def test_commits_that_blame_passes_over_exist() -> None:
    """One id that git cannot read, and `git blame` refuses to run at all."""
    lines = (REPOSITORY / ".git-blame-ignore-revs").read_text().splitlines()
    ids = [line for line in lines if line and not line.startswith("#")]
    shallow = _git("rev-parse", "--is-shallow-repository") == "true"

    assert ids
    assert [commit for commit in ids if re.fullmatch(r"[0-9a-f]{40}", commit) is None] == []
    # A clone without history cannot know them.
    assert shallow or {_git("cat-file", "-t", commit) for commit in ids} == {"commit"}


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip()
