"""`shardctl members` against a running `shardctl dev`."""

from __future__ import annotations

import json
import re
import socketserver
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.certificates import Certificate, CertificateAuthority
from tests.support.counter_cluster import CounterCluster
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_members_are_listed_cordoned_and_uncordoned(cluster: CounterCluster) -> None:
    """A table for people and JSON for programs show the same; what is done twice says that it was done before."""
    listed = json.loads(cluster.shardctl("members", "list", "-o", "json").output)["members"]
    assert sum(member["leads"] for member in listed) == 1
    chosen = listed[0]["id"]
    try:
        done = cluster.shardctl("members", "cordon", chosen)
        again = cluster.shardctl("members", "cordon", chosen)
        table = cluster.shardctl("members", "list").output.splitlines()

        assert done.output == f"{chosen} cordoned\n"
        assert again.output == "1 member unchanged: already cordoned\n"
        assert table[0].split()[:3] == ["MEMBER", "STATE", "REPLICAS"]
        states = {line.split()[0]: line.split()[1] for line in table[1:]}
        assert states == {
            member["id"]: "cordoned" if member["id"] == chosen else "ready" for member in listed
        }
    finally:
        undone = cluster.shardctl("members", "uncordon", chosen)
    assert undone.output == f"{chosen} uncordoned\n"


def test_cordon_of_nobody_names_what_was_expected(cluster: CounterCluster) -> None:
    """A name that is mistyped is one line that says which, and the exit code tells a script."""
    refused = cluster.shardctl("members", "cordon", "local#nobody")

    assert refused.exit_code == 3
    assert "MEMBER: there is no member local#nobody; there are zone-" in refused.output


def _uncordoned(cluster: CounterCluster) -> list[dict[str, Any]]:
    """Return the members as they are listed, none of them cordoned."""
    listed: list[dict[str, Any]] = json.loads(
        cluster.shardctl("members", "list", "-o", "json").output
    )["members"]
    assert not any(each["cordoned"] for each in listed), listed
    return listed


def test_drained_member_hands_over_and_leaves(cluster: CounterCluster) -> None:
    """The plan is shown first; a script must say --yes; the command ends when the member has left, and its shards are
    served by the other. `shardctl dev` starts it again.
    """
    # A test before may have uncordoned one, of which the member that is asked has not heard yet.
    listed = eventually_sync(lambda: _uncordoned(cluster))
    (chosen,) = [each["id"] for each in listed if each["endpoint"] == cluster.addresses[0]]

    dry = cluster.shardctl("members", "drain", chosen, "--dry-run")
    unasked = cluster.shardctl("members", "drain", chosen)
    unknown = cluster.shardctl("members", "drain", "local#nobody", "--yes")
    assert json.loads(cluster.shardctl("members", "list", "-o", "json").output)["members"] == listed
    drained = cluster.shardctl("members", "drain", chosen, "--yes", "--timeout", "300")
    served = cluster.shardctl("shards", "wait", "-l", "app=counter", "--for=primary")

    assert "nothing was changed" in dry.stderr
    assert (unasked.exit_code, unknown.exit_code) == (2, 3)
    assert "there is no member local#nobody" in unknown.stderr
    assert drained.exit_code == 0, drained.output
    assert drained.stdout.endswith(f"{chosen} draining\n{chosen} left\n")
    assert served.exit_code == 0, served.output


def _findings(cluster: CounterCluster, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result = cluster.shardctl("doctor", "-o", "json", *options)
    found = json.loads(result.stdout)["findings"]
    return result.exit_code, {each["what"]: (each["state"], each["detail"]) for each in found}


def test_doctor_finds_nothing_wrong_in_a_cluster_that_is_well(cluster: CounterCluster) -> None:
    """Etcd, both members, their clocks and versions, shards and the broker's disk, each in a line."""
    etcd = re.search(r"^etcd +(\S+)$", cluster.log.read_text(), re.MULTILINE)
    assert etcd is not None
    # Other tests of this process may have left a shard that still starts.
    cluster.shardctl("shards", "wait", "-l", "app=counter", "--for=primary")

    status, found = _findings(cluster, "--etcd", etcd[1])
    table = cluster.shardctl("doctor")

    assert status == 0, found
    assert {state for state, _ in found.values()} == {"ok"}, found
    assert found.keys() >= {"members", "shards", "clocks", "versions"}
    assert found[f"broker {cluster.broker}"][1].endswith("its store takes writes")
    assert found["clocks"][1].startswith("3 clocks within")
    assert found["versions"][1].endswith(
        "(2 members), " + found["versions"][1].split()[0] + " (1 broker)"
    )
    assert found[f"etcd {etcd[1]}"][1].startswith("version 3.")
    assert table.stdout.splitlines()[0].split() == ["STATE", "WHAT", "FOUND", "DO"]


def test_doctor_says_what_cannot_be_reached(cluster: CounterCluster) -> None:
    """One address after the other: each that does not answer is a line of its own, and the others are examined."""
    gone = "http://127.0.0.1:1"
    addresses = f"{gone},{cluster.addresses[1]}"
    where = ("--broker", gone, "--etcd", "127.0.0.1:1", "--address", addresses)

    status, found = _findings(cluster, *where)

    assert status == 1
    assert found[f"broker {gone}"][0] == found["etcd 127.0.0.1:1"][0] == "bad"
    assert found[f"member {gone}"][0] == "warn"
    assert found["shards"][0] == "ok", found


def test_doctor_names_certificates_that_end(cluster: CounterCluster, tmp_path: Path) -> None:
    """A server whose certificate ends tomorrow, one whose certificate ended, and one that nobody here trusts."""
    authority = CertificateAuthority(tmp_path)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    ends = authority.certificate("ends", "127.0.0.1")
    ended = authority.certificate("ended", "127.0.0.1", expires_at=yesterday)
    stranger = CertificateAuthority(tmp_path, "stranger").certificate("stranger", "127.0.0.1")
    with ExitStack() as stack:
        servers = [stack.enter_context(_tls_server(each)) for each in (ends, ended, stranger)]
        where = ("--address", ",".join(servers), "--tls-ca", str(authority.ca_file))
        ours = ("--tls-cert", str(ended.cert_file), "--tls-key", str(ended.key_file))
        status, found = _findings(cluster, *where, *ours)

    assert status == 1
    assert found[f"certificate {ended.cert_file}"][0] == "bad"
    certificates = [found[f"certificate {server}"] for server in servers]
    assert [state for state, _ in certificates] == ["warn", "bad", "bad"]
    assert "its certificate ends" in certificates[0][1]
    assert "certificate has expired" in certificates[1][1]
    assert "unable to get local issuer" in certificates[2][1]


@contextmanager
def _tls_server(certificate: Certificate) -> Iterator[str]:
    """A server that shakes hands and says nothing more."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
