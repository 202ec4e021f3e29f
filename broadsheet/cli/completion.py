"""`shardctl completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, and the ids of shards, journals and members as the cluster has them.

    \b
    Examples:
      eval "$(shardctl completion bash)"    # in ~/.bashrc
      eval "$(shardctl completion zsh)"     # in ~/.zshrc
      shardctl completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has all of these"
    click.echo(kind(ctx.find_root().command, {}, "shardctl", "_SHARDCTL_COMPLETE").source())
