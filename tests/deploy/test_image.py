"""The image's files that can be tried without building it; `make nightly-image` builds and runs it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.security.auth import NoAuth
from broadsheet.serving.admin import AdminServer, standard_routes
from broadsheet.serving.standard_services import Health
from tests.support.certificates import CertificateAuthority
from tests.support.documents import REPOSITORY

IMAGE = REPOSITORY / "deploy" / "image"


def test_dockerfile_follows_the_rules_of_hadolint() -> None:
    """Its rules are what reviewers of images ask for."""
    done = subprocess.run(
        [f"{sys.prefix}/bin/hadolint", str(IMAGE / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_image_runs_as_the_user_of_the_chart_without_a_shell() -> None:
    """Kubernetes refuses `runAsNonRoot` with a user that is a name, and a shell form would swallow SIGTERM."""
    text = (IMAGE / "Dockerfile").read_text()
    chart = (REPOSITORY / "deploy" / "chart" / "templates" / "_pods.tpl").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
    assert f"runAsUser: {user}\n" in chart
    for form in re.findall(r"(?:^|\s)(?:CMD|ENTRYPOINT) (.)", text):
        assert form == "["
    # What the chart's pods run must be on PATH and be no argument of something else.
    assert "ENTRYPOINT" not in text


async def _status(port: int) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(IMAGE / "healthcheck.py"), str(port)
    )
    return await process.wait()


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_healthcheck_tells_a_process_that_answers_from_one_that_does_not(
    is_encrypted: bool, tmp_path: Path
) -> None:
    """Docker asks nothing else, with certificates or without."""
    tls = CertificateAuthority(tmp_path).tls("orders", "orders.prod.svc") if is_encrypted else None
    routes = standard_routes(Health(), CollectorRegistry(), dict)
    async with AdminServer("127.0.0.1", 0, routes=routes, verifier=NoAuth(), tls=tls) as server:
        port = int(server.address.rpartition(":")[2])
        assert await _status(port) == 0
    assert await _status(port) == 1
