"""docs/recipes: each page is followed, step by step, in a copy of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY
from tests.support.recipes import Step, changed, copy_repository, follow, steps_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RECIPES = sorted((REPOSITORY / "docs" / "recipes").glob("*.md"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_leads_to_a_change_that_works(recipe: Path, tmp_path: Path) -> None:
    """A first change follows a page word for word: its files, edits and commands must do what it says."""
    kinds = [step.kind for step in steps_of(recipe)]
    assert {"New file", "In", "run", "shows"} <= set(kinds)

    copy_repository(tmp_path)
    follow(recipe, tmp_path)


def test_edit_that_the_file_does_not_have_is_refused() -> None:
    """A page whose file has changed under it must fail, and not edit something else."""
    step = Step("In", "a.py", " one\n-two\n+2\n…\n+zero\n one\n")

    assert changed("one\ntwo\n", step) == "zero\none\n2\n"
    for text in ("one\n", "one\ntwo\none\ntwo\n"):
        with pytest.raises(AssertionError, match=r"a\.py has this"):
            changed(text, step)
