"""Which journals a write goes to: those that its selector finds, agreed on by all its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.format_options import OptionError
from spark_bridge.journal_sink.attempt import WritePlan
from spark_bridge.journal_sink.encoder import encoder_for
from spark_bridge.journal_sink.key_mapping import mapping_for

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_bridge.journal_sink.options import WriteOptions


async def plan_write(options: WriteOptions, schema: StructType) -> WritePlan:
    """Find the journals, and agree on how rows become their messages.

    Raises:
        OptionError: no journal matches, or their content types differ.
        PublishError: the rows do not fit them.
        EndpointError: no broker could be reached.
    """
    journals, content_type = await _find_journals(options)
    return WritePlan(
        access=options.access,
        journals=journals,
        mapping=mapping_for(options, journal_count=len(journals), schema=schema),
        encoder=encoder_for(content_type, schema, options),
    )


async def _find_journals(options: WriteOptions) -> tuple[tuple[str, ...], str]:
    """Return the journals by name, and their content type."""
    from consumer.protocol.labels import CONTENT_TYPE, value_of
    from consumer.protocol.selector_text import parse_selector
    from spark_bridge.brokers import open_client

    async with open_client(options.access) as client:
        listed = await client.list(parse_selector(options.selector))
    if not listed.journals:
        expected = (
            "a selector that matches journals; create them first, e.g. with shardctl journals apply"
        )
        raise OptionError("selector", expected, got=options.selector)
    journals = sorted(listed.journals, key=lambda journal: journal.spec.name)
    by_type = {value_of(found.spec.labels, CONTENT_TYPE): found.spec.name for found in journals}
    if len(by_type) > 1:
        examples = ", ".join(f"{name} has {kind or 'none'}" for kind, name in by_type.items())
        expected = f"journals of one content type; {examples}"
        raise OptionError("selector", expected, got=options.selector)
    return tuple(found.spec.name for found in journals), next(iter(by_type))
