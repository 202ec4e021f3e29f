"""The `shardctl` command and its groups. Commands are imported when they are named, so that help comes at once."""

from __future__ import annotations

import io
import os
import sys

import click

from broadsheet.cli.lazy_group import LazyCommand, LazyGroup
from broadsheet.runtime.log_output import open_standard_descriptors

# Before any file is opened, which would get the number of a standard descriptor that is closed.
open_standard_descriptors()

# Before gRPC is imported, with the commands: it would print a line for each failed handshake of TLS, which our own
# errors tell better, and which anybody can cause as often as they like.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


@click.group(
    cls=LazyGroup,
    lazy={
        "can-i": LazyCommand(
            "access:can_i",
            "Ask the servers whether our credentials permit VERB of KIND, or of the one named ID.",
        ),
        "completion": LazyCommand("contexts:completion", "Print the completion script of a shell."),
        "dev": LazyCommand("dev:dev", "Run a whole cluster on this machine until Ctrl-C."),
        "doctor": LazyCommand(
            "doctor:doctor", "Examine the cluster: what is wrong, and what to do about it."
        ),
        "explain": LazyCommand(
            "plan:explain", "Explain a shard's placement, and what it waits for."
        ),
        "init": LazyCommand("init:init_project", "Make a small tested project in a new folder."),
        "plan": LazyCommand(
            "plan:plan", "Print what a change would move, without changing anything."
        ),
        "serve": LazyCommand("serve:serve", "Run one member of an application's group."),
        "token": LazyCommand("access:token", "Print a token signed with the cluster's keys."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="broadsheet", prog_name="shardctl")
def main() -> None:
    """Declare, inspect, move and serve stateful shards.

    \b
    Start here:
      shardctl init hello                         a project of your own
      shardctl dev                                run it: a whole cluster on this machine
      shardctl journals publish NAME              JSON lines from standard input as messages
      shardctl shards list                        what runs where
      shardctl shards apply -f shards.yaml        declare shards
      shardctl plan --drain zone-a#member-0       what a change would move
    """
    _write_utf8()


def _write_utf8() -> None:
    """Write UTF-8 to files and pipes, so that what a command lists can be applied; a terminal has its own encoding."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8")


def _spec_verbs(noun: str) -> dict[str, LazyCommand]:
    """Return the verbs that shards and journals share."""
    summaries = {
        "apply": f"Create, update and delete {noun}s as YAML files say.",
        "delete": f"Delete {noun}s: each {noun.upper()}, or those that match.",
        "diff": f"Show what `shardctl {noun}s apply -f` would change.",
        "edit": f"Edit specs of {noun}s in $EDITOR.",
        "label": f"Set and remove labels of a {noun}, or of those that match.",
    }
    return {
        verb: LazyCommand(f"{noun}s.spec_verbs:{verb}_{noun}s", summary)
        for verb, summary in summaries.items()
    }


@main.group(
    cls=LazyGroup,
    lazy={
        **_spec_verbs("shard"),
        "dead-letters": LazyCommand(
            "shards.dead_letters:list_dead_letters",
            "List the messages that a shard left out, and why.",
        ),
        "replay": LazyCommand(
            "shards.replay:replay", "Publish messages that a shard left out once more."
        ),
        "pause": LazyCommand(
            "shards.pause:pause_shards",
            "Pause shards: they keep their state, and no member serves them.",
        ),
        "resume": LazyCommand(
            "shards.pause:resume_shards", "Let members serve paused shards again."
        ),
        "describe": LazyCommand(
            "shards.describe:describe_shard", "Show all that is known of a shard."
        ),
        "hints": LazyCommand("shards.hints:shard_hints", "Print a shard's recovery hints."),
        "list": LazyCommand("shards.spec_verbs:list_shards", "List shards with their state."),
        "moves": LazyCommand(
            "shards.moves:list_moves", "Show the moves of replicas: of SHARD, or of all."
        ),
        "prune": LazyCommand(
            "shards.prune:prune_shards",
            "Remove fragments that no recovery needs from recovery logs.",
        ),
        "recover": LazyCommand(
            "shards.recover:recover_shard", "Write a shard's files as its recovery log has them."
        ),
        "reset-source": LazyCommand(
            "shards.reset_source:reset_source",
            "Make a shard continue in a source that was replaced.",
        ),
        "rewind": LazyCommand(
            "shards.rewind:rewind_shard",
            "Make a shard recover from a backup of its hints, or from its whole log.",
        ),
        "stat": LazyCommand(
            "shards.stat:stat_shard", "Show the progress of a shard, as its primary reports it."
        ),
        "unassign": LazyCommand("shards.unassign:unassign_shards", "Restart shards."),
        "wait": LazyCommand(
            "shards.wait:wait_for_shards", "Wait until each shard is as it should be."
        ),
    },
)
def shards() -> None:
    """Inspect and change shards."""


@main.group(
    cls=LazyGroup,
    lazy={
        **_spec_verbs("journal"),
        "append": LazyCommand("journals.append:append_journal", "Append bytes to a journal."),
        "describe": LazyCommand(
            "journals.describe:describe_journal", "Show all that is known of a journal."
        ),
        "list": LazyCommand("journals.spec_verbs:list_journals", "List journals."),
        "fragments": LazyCommand(
            "journals.fragments:list_fragments", "List the fragments of a journal."
        ),
        "prune": LazyCommand(
            "journals.prune:prune_journals",
            "Remove fragments that are older than their journal's retention.",
        ),
        "publish": LazyCommand(
            "journals.publish:publish_messages", "Publish JSON lines as messages."
        ),
        "reset-head": LazyCommand(
            "journals.reset_head:reset_head", "Accept that the end of journals was lost."
        ),
        "suspend": LazyCommand(
            "journals.suspend:suspend_journals", "Suspend journals that nobody appends to."
        ),
        "quarantined": LazyCommand(
            "journals.quarantined:quarantined",
            "List unknown entries that the broker moved to quarantine.",
        ),
        "read": LazyCommand(
            "journals.read:read_journal", "Write a journal's bytes to standard output."
        ),
        "verify": LazyCommand(
            "journals.verify:verify_journals", "Compare stored fragments with their checksums."
        ),
    },
)
def journals() -> None:
    """Inspect, change, read and write journals."""


@main.group(
    cls=LazyGroup,
    lazy={
        "evict": LazyCommand("leases:evict_leases", "Take leases from their owners."),
        "export": LazyCommand(
            "leases:export_leases", "Print all leases as JSON lines, for `shardctl leases import`."
        ),
        "import": LazyCommand(
            "leases:import_leases", "Move leases and checkpoints into another store."
        ),
        "list": LazyCommand("leases:list_leases", "List leases, their owners and checkpoints."),
    },
)
def leases() -> None:
    """Look at leases and checkpoints, and move them between stores.

    \b
    A store is one of
      etcd:/ROOT              ?endpoints=HOST:PORT,…  ca_file  cert_file  key_file
      sql:postgresql://…      ?table=NAME             sql:sqlite:////PATH
      dynamodb:TABLE          ?layout=native|kcl-java|vmware-go  region  endpoint
      azblob:CONTAINER        ?layout=native  prefix
                              ?layout=eph  group  prefix
                              ?layout=eventhubs  scope=NAMESPACE/HUB/GROUP

    \b
    Secrets are in the environment: ETCD_ADDRESS, ETCD_USER and ETCD_PASSWORD;
    PGPASSWORD; AWS' own variables and files; AZURE_STORAGE_CONNECTION_STRING,
    or the variable that connection_env=NAME names.
    """


@main.group(
    cls=LazyGroup,
    lazy={
        "copy": LazyCommand(
            "examples.copy:copy_example", "Copy an example into a folder, to change it."
        ),
        "list": LazyCommand(
            "examples.list:list_examples",
            "List the examples that are installed, with their applications and the paths of their files.",
        ),
    },
)
def examples() -> None:
    """List and copy the examples that are installed with us."""


@main.group(
    cls=LazyGroup,
    lazy={
        "list": LazyCommand("contexts:list_contexts", "List contexts; the current one is marked."),
        "use": LazyCommand("contexts:use_context", "Make NAME the current context."),
    },
)
def contexts() -> None:
    """List and choose contexts: clusters' addresses and credentials by name.

    \b
    They are in ~/.config/broadsheet/config.yaml, or where BROADSHEET_CONFIG says:
      current: test
      contexts:
        test: {address: "http://localhost:8080", broker: "http://localhost:8081"}
        live:
          address: https://member-1:8080,https://member-2:8080
          broker: https://broker:8080
          auth_keys_file: live.keys     # relative to this file
          tls_ca: live-ca.pem

    Flags come before environment variables, and those before the file.
    """


@main.group(
    cls=LazyGroup,
    lazy={
        "cordon": LazyCommand("members:cordon", "Keep new shards from each MEMBER (zone#suffix)."),
        "drain": LazyCommand(
            "members:drain", "Let each MEMBER (zone#suffix) hand its shards over and leave."
        ),
        "list": LazyCommand(
            "members:list_members", "List each member, its replicas, and whether it accepts more."
        ),
        "uncordon": LazyCommand(
            "members:uncordon", "Let new shards come to each MEMBER (zone#suffix) again."
        ),
    },
)
def members() -> None:
    """List members, cordon and drain them.

    A cordoned member keeps the shards that it has, and gets no others, until it is uncordoned or its process ends.
    A drained member hands over what it has, and its process ends.

    \b
    Examples:
      shardctl members list
      shardctl members cordon zone-a#member-0 zone-a#member-1
      shardctl members uncordon zone-a#member-0
      shardctl members drain zone-a#member-0
    """


if __name__ == "__main__":
    main()
