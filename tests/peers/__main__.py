"""`make peers`: what of other systems was tried, in which version, and with what result, as a table of Markdown.

A *real* peer is the other system's own program or library, fetched by its package name. A *double* answers for a
service that is not free to run (AWS, Azure), or makes the requests of a program from its source, to reach what the
program itself does too seldom. Names of peers as arguments run those alone. It ends with 1 if anything failed, also if
nothing of a peer was tried: its result says what is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.vs_structured_streaming.maven import KAFKA, Artifact
from tests.peers.lease_programs import KCL_2, KCL_3
from tests.support.documents import REPOSITORY

_LEASING: Final = "tests/integration/leasing"
_WORKERS: Final = "tests/peers/lease_workers.py::test_workers_of_both_kinds_lose_no_message"
_SHARED: Final = (
    "workers of both kinds on one stream: joined, killed, split, left; no message is lost"
)
_CONTRACT: Final = "tests/contract/leasing"
_TRIED_SECONDS_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One system, and the tests that have ours meet it."""

    name: str
    package: str
    """As its registry names it: `go:`, `maven:`, `npm:` or `pypi:`."""
    kind: str
    """`real`, and on which double; or what answers in its place."""
    tried: str
    tests: Sequence[str]
    programs: Sequence[str] = ()
    """On PATH."""

    def version(self) -> str:
        """Return the version that is tried."""
        registry, _, package = self.package.partition(":")
        if registry == "pypi":
            return metadata.version(package)  # noqa: TID251 - of other packages
        if registry == "maven":
            _, _, version = package.rpartition(":")
            return version
        for pin in _PINS[registry]:
            pinned = re.escape(package) + r'"?:? "?v?([\d.]+)'
            found = re.search(pinned, (REPOSITORY / pin).read_text())
            if found:
                return found[1]
        raise LookupError(f"{package} is in none of {', '.join(_PINS[registry])}")


_PINS: Final = {
    "go": ("tests/gazette/gazette_module/go.mod", "tests/peers/vmware_go/go.mod"),
    "npm": ("tests/support/azurite/package.json",),
}


def _maven(artifact: Artifact) -> str:
    return f"maven:{artifact.group}:{artifact.name}:{artifact.version}"


PEERS: Final = (
    Peer(
        "Gazette brokers",
        "go:go.gazette.dev/core",
        "real",
        "four brokers, two of which crash: our clients, members and recovery logs on them",
        ("tests/gazette/real_brokers.py",),
        ("go",),
    ),
    Peer(
        "Gazette consumers",
        "go:go.gazette.dev/core",
        "real",
        "a consumer in Go and members of ours in one cluster: take-overs both ways, carried records, readers of both",
        ("tests/gazette/go_members.py",),
        ("go",),
    ),
    Peer(
        "Azure Event Hubs' processor",
        "pypi:azure-eventhub",
        "real, on a hub without a network",
        "Microsoft's processor on our stores, and our facade in its place",
        (
            f"{_LEASING}/test_event_hub_clients.py",
            f"{_CONTRACT}/test_event_processors_contract.py",
        ),
    ),
    Peer(
        "Azure Blob Storage",
        "npm:azurite",
        "Microsoft's emulator",
        "leases as Event Processor Host and the checkpoint store keep them",
        (
            f"{_LEASING}/test_azure_eph_leases.py",
            f"{_LEASING}/test_azure_eph_keeping.py",
            f"{_LEASING}/test_azure_processor_blobs.py",
        ),
    ),
    Peer(
        "Kafka's broker",
        _maven(KAFKA),
        "real",
        "behind TLS and passwords: as a source, as a sink, and straight from a shard with state",
        ("tests/sinks/secured_kafka.py",),
    ),
    Peer(
        "Kafka's client",
        "pypi:confluent-kafka",
        "librdkafka's client and its mock cluster",
        "topics as sources: positions, transactions, topics that are created again",
        (
            "tests/integration/consumer/test_kafka_source.py",
            "tests/integration/consumer/test_kafka_positions.py",
        ),
    ),
    Peer(
        "KCL for Java 2",
        _maven(KCL_2),
        "real, on a double of AWS",
        _SHARED,
        (f"{_WORKERS}[kcl-2]",),
    ),
    Peer(
        "KCL for Java 3",
        _maven(KCL_3),
        "real, on a double of AWS",
        _SHARED,
        (f"{_WORKERS}[kcl-3]",),
    ),
    Peer(
        "KCL's rows",
        "pypi:moto",
        "its requests, made from its source, on a double of DynamoDB",
        "rows, hand-overs, leaders of 3.0 to 3.5",
        (f"{_LEASING}/kcl_java",),
    ),
    Peer(
        "vmware-go-kcl-v2",
        "go:github.com/vmware/vmware-go-kcl-v2",
        "real, on a double of AWS",
        _SHARED,
        (f"{_WORKERS}[vmware-go]",),
        ("go",),
    ),
    Peer(
        "vmware-go-kcl's rows",
        "pypi:moto",
        "its requests, made from its source, on a double of DynamoDB",
        "rows, claims, what it overwrites",
        (f"{_LEASING}/vmware_go",),
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one peer."""

    passed: int = 0
    failed: int = 0
    missing: str = ""

    @property
    def is_good(self) -> bool:
        """True if something was tried, and all of it passed."""
        return self.passed > 0 and not self.failed

    def __str__(self) -> str:
        if self.missing:
            return f"not run: {self.missing}"
        return f"{self.passed} passed" + (f", **{self.failed} failed**" if self.failed else "")


def tried(peer: Peer) -> Result:
    """Run a peer's tests."""
    missing = [each for each in peer.programs if shutil.which(each) is None]
    if missing:
        return Result(missing=f"needs {', '.join(missing)} on PATH")
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *peer.tests, f"--junitxml={report}"]
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=sys.stderr, timeout=_TRIED_SECONDS_MAX, check=False
        )
        if not report.exists():
            return Result(failed=1, missing=f"pytest ended with {done.returncode}")
        return result_of(report.read_text())


def result_of(report: str) -> Result:
    """Return what pytest's report says; a test that was skipped counts as failed, because none of these may be."""
    cases = list(ET.fromstring(report).iter("testcase"))  # noqa: S314 - pytest wrote it
    bad = sum(
        any(each.find(kind) is not None for kind in ("failure", "error", "skipped"))
        for each in cases
    )
    return Result(passed=len(cases) - bad, failed=bad)


def main(names: Sequence[str]) -> int:
    """Try the peers named, or all; print the table; return the status."""
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        print(
            f"expected {', '.join(peer.name for peer in PEERS)}, got {min(unknown)}",
            file=sys.stderr,
        )
        return 2
    results = [(peer, tried(peer)) for peer in PEERS if not names or peer.name in names]
    print("| Peer | Package | Version | What answers | Tried | Result |\n|---|---|---|---|---|---|")
    for peer, result in results:
        cells = (peer.name, peer.package, peer.version(), peer.kind, peer.tried, str(result))
        print(f"| {' | '.join(cells)} |")
    return 0 if all(result.is_good for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
