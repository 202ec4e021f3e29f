"""Questions of `shardctl` at a real terminal: nothing is done before the answer, nor after a no."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.counter_cluster import CounterCluster
from tests.support.terminals import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

JOURNAL = "asked/journal"
SPECS = f"""
name: {JOURNAL}
replication: 1
labels: [{{name: content-type, value: application/x-ndjson}}]
fragment: {{length: 67108864, compression_codec: NONE, refresh_interval: 1m}}
"""


def _asked(cluster: CounterCluster, *answers: str) -> Terminal:
    """Delete the journal at a terminal, and give an answer each time that it is asked."""
    where = {"CONSUMER_ADDRESS": cluster.addresses[1], "BROKER_ADDRESS": cluster.broker}
    command = [sys.executable, "-m", "broadsheet.cli.main", "journals", "delete", JOURNAL]
    terminal = Terminal(command, {**os.environ, **where})
    for answer in answers:
        terminal.wait_for("[y/N]: ")
        terminal.type(f"{answer}\r")
    return terminal


def _is_there(cluster: CounterCluster) -> bool:
    return JOURNAL in cluster.shardctl("journals", "list", "-o", "name").stdout.split()


def test_question_at_a_terminal_is_asked_until_it_is_answered(cluster: CounterCluster) -> None:
    """A no, the end of the input and Ctrl-C change nothing; other words are asked about once more; a yes does it."""
    applied = cluster.shardctl("journals", "apply", "--specs", "-", stdin=SPECS)
    assert applied.exit_code == 0, applied.stderr

    refused = _asked(cluster, "n")
    assert (refused.end(), _is_there(cluster)) == (1, True)
    assert f"Delete 1 journal: {JOURNAL}? [y/N]: n" in refused.output
    assert "Aborted!" in refused.output

    interrupted = _asked(cluster)
    interrupted.wait_for("[y/N]: ")
    assert (interrupted.interrupt(), _is_there(cluster)) == (1, True)
    assert "Traceback" not in interrupted.output

    agreed = _asked(cluster, "perhaps", "y")
    assert (agreed.end(), _is_there(cluster)) == (0, False)
    assert "invalid input" in agreed.output
    assert f"{JOURNAL} deleted" in agreed.output
