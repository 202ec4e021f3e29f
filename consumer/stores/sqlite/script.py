"""SQL scripts: an application's schema, statement by statement."""

from __future__ import annotations

import sqlite3


def statements_of(script: str) -> list[str]:
    """Return the statements of a script, in order."""
    statements: list[str] = []
    pending = ""
    for part in script.split(";"):
        pending += part + ";"
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    if pending.rstrip(";").strip():
        statements.append(pending)
    return [statement for statement in statements if statement.strip(" \n\t;")]
