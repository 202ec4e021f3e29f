"""docs/first-application.md, line by line, from an empty folder, with the wheel and not the repository."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY
from tests.support.installed_wheel import install_wheel
from tests.support.walks import Walk, environment_of

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(900)]


def test_walk_leads_from_an_empty_folder_to_an_application_on_spark(tmp_path: Path) -> None:
    """A store, a query, the test of each kill point, a cluster here and one on Spark: each does what the page says."""
    for name in ("wheel", "empty"):
        (tmp_path / name).mkdir()
    environment = environment_of(install_wheel(tmp_path / "wheel"))
    with ExitStack() as resources:
        Walk(tmp_path / "empty", environment, resources).follow(
            REPOSITORY / "docs" / "first-application.md"
        )
