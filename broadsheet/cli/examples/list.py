"""`shardctl examples list`: the examples that are installed, and how to run each here."""

from __future__ import annotations

from broadsheet.cli.command import plain_command
from broadsheet.cli.examples.installed import installed_examples
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, print_fields
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table


@command_options
class _ListOptions:
    output: Output


@plain_command("list", _ListOptions)
def list_examples(options: _ListOptions) -> None:
    """List the examples that are installed, with their applications and the paths of their files.

    \b
    Examples:
      shardctl examples list
      shardctl examples list -o json
    """
    found = installed_examples()
    if options.output is not OutputFormat.TABLE:
        fields = [
            {
                "name": each.name,
                "application": each.application,
                "journals": str(each.journals or ""),
                "specs": str(each.specs or ""),
            }
            for each in found
        ]
        print_fields({"examples": fields}, options.output)
        return
    rows = [[each.name, each.application, each.summary] for each in found]
    print_table(["NAME", "APPLICATION", "ABOUT"], rows)
    for each in found:
        say(f"\n{each.command}")
