"""Journals that a command line names or selects."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.options import require_selection
from broadsheet.journals.client import JournalClient
from broadsheet.journals.listing import ListResult
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import NAME, label_set, parse_selector, selector as selector_of


async def listed_journals(client: JournalClient, names: Sequence[str], selector: str) -> ListResult:
    """Return the journals of these names, or those that match; all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
        NothingSelectedError: there is no journal of one of the names.
    """
    if not names:
        return await client.list(parse_selector(selector))
    if selector:
        raise ValidationError("--selector", "expected either JOURNAL or --selector")
    listing = await client.list(selector_of(label_set(*((NAME, each) for each in names))))
    missing = {*names} - {listed.spec.name for listed in listing.journals}
    if missing:
        raise NothingSelectedError("JOURNAL", f"there is no journal {', '.join(sorted(missing))}")
    return listing


async def selected_names(client: JournalClient, names: Sequence[str], selector: str) -> list[str]:
    """Return the names of the journals that are named or selected; something is.

    Raises:
        NothingSelectedError: nothing is.
    """
    require_selection("journal", names, selector, changes=True)
    listed = (await listed_journals(client, names, selector)).journals
    if not listed:
        raise NothingSelectedError("--selector", f"no journal matches {selector!r}")
    return [each.spec.name for each in listed]
