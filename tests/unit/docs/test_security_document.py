"""docs/security.md names every method, and what its guard asks for."""

from __future__ import annotations

import re

from broadsheet.consumer.rpc.guard import SHARD_CAPABILITIES
from broadsheet.security.audit import AUDITED_METHODS
from tests.support.documents import REPOSITORY
from tests.support.rpc_table import DOCUMENT, methods, rows, rpc_table

_THREATS = re.compile(r"^## Threat model\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_method_has_a_row() -> None:
    """A method that is added to a service must be added to the table, and a row whose method is gone must go."""
    assert sorted(rows()) == sorted(methods())


def test_rows_of_members_are_what_the_guard_asks_for() -> None:
    """The guard would ask READ for a method that it does not know: none of ours may be left to that."""
    by_guard = {method.removeprefix("/"): needs for method, needs in SHARD_CAPABILITIES.items()}
    services = {method.partition("/")[0] for method in by_guard}
    documented = {
        method: needs.capability
        for method, needs in rpc_table().items()
        if needs.service in services
    }

    assert documented == by_guard


def test_every_change_is_in_the_audit_log() -> None:
    """A method that needs APPLY changes something, so that its calls must be logged; so must those that may need it."""
    changing = {f"/{needs.method}" for needs in rpc_table().values() if "APPLY" in needs.needs}

    assert changing == AUDITED_METHODS


def test_each_threat_has_tests_that_exist() -> None:
    """A line without a test is a hope; one whose test was renamed would become one unnoticed."""
    [section] = _THREATS.findall(DOCUMENT.read_text(encoding="utf-8"))
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = {line: _NODE.findall(line.rpartition(" | ")[2]) for line in lines}
    missing = [
        f"{path}::{name}"
        for nodes in found.values()
        for path, name in nodes
        if not _is_defined(path, name)
    ]

    assert len(lines) > 20
    assert [line for line, nodes in found.items() if not nodes] == []
    assert missing == []


def _is_defined(path: str, name: str) -> bool:
    file = REPOSITORY / path
    defined = re.compile(rf"^(async )?def {name}\(", re.MULTILINE)
    return file.exists() and defined.search(file.read_text(encoding="utf-8")) is not None
