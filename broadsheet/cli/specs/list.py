"""`list` of shards and journals: as a table, as a document, or watched."""

from __future__ import annotations

from typing import Annotated, Any, Final

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import Parameter, PerKind, Selector, command_options, flag, option
from broadsheet.cli.output.documents import fields_of, print_message
from broadsheet.cli.output.jsonpath import print_path
from broadsheet.cli.output.lists import ListColumns, ListFormat, ListFormatType, watch_rows
from broadsheet.cli.specs.verb import AnyKind, Names, SpecVerb


def _replicas(kind: AnyKind) -> Parameter | None:
    if not kind.is_shards:
        return None
    return click.option("-r", "--replicas", is_flag=True, help="Also show every replica.")


def _lag(kind: AnyKind) -> Parameter | None:
    if not kind.is_shards:
        return None
    text = "Also show unread bytes by source (asks each primary)."
    return click.option("--lag", is_flag=True, help=text)


@command_options
class _ListOptions:
    names: Names
    selector: Selector
    output: ListFormat = option(
        "How to print the list; e.g. jsonpath='{.shards[*].spec.id}'.",
        "-o",
        type=ListFormatType(),
        default="table",
        metavar="table|wide|name|yaml|json|jsonpath=PATH",
    )
    label_columns: tuple[str, ...] = option(
        "Also show this label; may be repeated.", "-L", multiple=True
    )
    replicas: Annotated[bool, PerKind(_replicas)] = False
    lag: Annotated[bool, PerKind(_lag)] = False
    watch: bool = flag("Then print each row that changes, until Ctrl-C.", "-w")
    interval: float = option(
        "Pause between two looks of --watch, where it has to ask again and again.",
        type=Seconds(min=0.05),
        default=2.0,
        metavar="SECONDS",
    )

    @property
    def columns(self) -> ListColumns:
        """The columns that are asked for."""
        wide = self.output.name == "wide"
        return ListColumns(
            labels=self.label_columns, wide=wide, replicas=self.replicas or wide, lag=self.lag
        )


async def _list(kind: AnyKind, connection: Connection, options: _ListOptions) -> None:
    if options.watch and not options.output.has_rows:
        raise click.UsageError("--watch prints rows: expected -o table, wide or name with it")
    only_names = options.output.name == "name"
    async with kind.over(connection) as client:
        if not options.output.has_rows:
            listing = await client.listing(options.names, options.selector)
            _print_listing(kind, listing, options.output)
            return
        table = client.table(options.names, options.selector, options.columns)
        if options.watch:
            states = table.follow(interval_seconds=options.interval)
            await watch_rows(states, only_names=only_names)
        else:
            (await table.look()).show(only_names=only_names)


def _print_listing(kind: AnyKind, listing: Any, output: ListFormat) -> None:
    if output.name == "yaml":
        click.echo(kind.listing_text(listing), nl=False)
    elif output.name == "json":
        print_message(listing)
    else:
        print_path(fields_of(listing), output.path)


LIST: Final = SpecVerb("list", _ListOptions, _list, is_endless=lambda options: options.watch)
