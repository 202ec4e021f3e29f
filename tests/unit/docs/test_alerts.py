"""The alert rules and the page that explains them; their metrics are compared with a live scrape elsewhere."""

from __future__ import annotations

import re

import yaml

from tests.support.documents import REPOSITORY

ALERTS = REPOSITORY / "docs" / "operations" / "alerts.yaml"
OPERATIONS = REPOSITORY / "docs" / "operations.md"


def test_each_alert_says_what_to_do() -> None:
    """Who is woken at night needs the remedy in the message, and the page has the same."""
    text = OPERATIONS.read_text()
    documented = {
        name: (severity, remedy)
        for name, severity, remedy in re.findall(
            r"^\| `([A-Z]\w+)` \| (page|ticket) \| (.+) \|$", text, re.MULTILINE
        )
    }
    rules = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    assert documented == {
        rule["alert"]: (rule["labels"]["severity"], rule["annotations"]["remedy"]) for rule in rules
    }
    assert all(rule["annotations"]["summary"] for rule in rules)
