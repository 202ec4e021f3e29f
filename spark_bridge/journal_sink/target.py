"""Which journals a sink writes: those that its selector finds, agreed on by all tasks of a write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator.errors import ValidationError
from spark_bridge.errors import PublishError
from spark_bridge.journal_sink.attempt import WritePlan
from spark_bridge.journal_sink.encoder import encoder_for
from spark_bridge.journal_sink.key_mapping import mapping_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_bridge.journal_sink.options import SinkOptions


async def plan_write(options: SinkOptions, schema: StructType) -> WritePlan:
    """Find the journals, and agree on how rows become their messages.

    Raises:
        PublishError: no journal matches, their content types differ, or the rows do not fit them.
        EndpointError: no broker could be reached.
    """
    journals, content_type = await _find_journals(options)
    return WritePlan(
        address=options.address,
        journals=journals,
        mapping=mapping_for(
            options.mapping, key=options.key, journal_count=len(journals), schema=schema
        ),
        encoder=encoder_for(content_type, schema, options),
    )


async def _find_journals(options: SinkOptions) -> tuple[tuple[str, ...], str]:
    """Return the journals by name, and their content type."""
    from consumer.journal.client import JournalClient
    from consumer.protocol.labels import CONTENT_TYPE, value_of
    from consumer.protocol.selector_text import parse_selector

    try:
        selector = parse_selector(options.selector)
        client = JournalClient(options.address)
    except ValidationError as error:
        raise PublishError(f"selector or address: {error}") from error
    async with client:
        listed = await client.list(selector)
    if not listed.journals:
        raise PublishError(
            f"selector: no journal matches {options.selector!r}; apply some first, e.g. with shardctl journals apply"
        )
    journals = sorted(listed.journals, key=lambda journal: journal.spec.name)
    by_type = {value_of(found.spec.labels, CONTENT_TYPE): found.spec.name for found in journals}
    if len(by_type) > 1:
        examples = ", ".join(f"{name} has {kind or 'none'!r}" for kind, name in by_type.items())
        raise PublishError(f"selector: the journals of one write need one content type; {examples}")
    return tuple(found.spec.name for found in journals), next(iter(by_type))
