"""`shardctl examples copy`: an example as a package of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from broadsheet.cli.command import plain_command
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.examples.installed import EXAMPLES, PACKAGE, installed_examples
from broadsheet.cli.new_project import PASSED_OVER, require_empty, require_name
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.messages import say


@command_options
class _CopyOptions:
    name: str = argument()
    directory: Path | None = option(
        "Folder of the copy, in place of NAME.", type=click.Path(path_type=Path)
    )


@plain_command("copy", _CopyOptions)
def copy_example(options: _CopyOptions) -> None:
    """Copy an example into a folder, to change it.

    The folder is a package of its own, which imports nothing of the original.

    \b
    Examples:
      shardctl examples copy counter
      shardctl examples copy word_count --directory words
    """
    known = {each.name: each for each in installed_examples()}
    example = known.get(options.name)
    if example is None:
        problem = f"expected one of {', '.join(known)}, got {options.name!r}"
        raise NothingSelectedError("NAME", problem)
    target = options.directory or Path(options.name)
    require_name(target.name)
    require_empty(target)
    package = f"{PACKAGE}.{example.name}"
    for source in sorted((EXAMPLES / example.name).rglob("*")):
        path = source.relative_to(EXAMPLES / example.name)
        if not source.is_file() or PASSED_OVER & {*path.parts}:
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes().replace(package.encode(), target.name.encode())
        (target / path).write_bytes(content)
        click.echo(str(target / path))
    copied = [example.application.replace(package, target.name)]
    for option_name, path_or_none in (("journals", example.journals), ("specs", example.specs)):
        if path_or_none is not None:
            copied.append(f"--{option_name} {target / path_or_none.name}")
    say("\nnext:\n  shardctl dev " + " \\\n      ".join(copied))
