"""The `shardctl` command and its groups. Commands are imported when they are named, so that help comes at once."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping

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
            "can_i",
            "Ask the servers whether our credentials permit VERB of KIND, or of the one named ID.",
        ),
        "completion": LazyCommand("completion", "Print the completion script of a shell."),
        "dev": LazyCommand("dev.dev", "Run a whole cluster on this machine until Ctrl-C."),
        "doctor": LazyCommand(
            "doctor.doctor", "Examine the cluster: what is wrong, and what to do about it."
        ),
        "explain": LazyCommand("explain", "Explain a shard's placement, and what it waits for."),
        "init": LazyCommand("init", "Make a small tested project in a new folder."),
        "plan": LazyCommand("plan", "Print what a change would move, without changing anything."),
        "serve": LazyCommand("serve.serve", "Run one member of an application's group."),
        "token": LazyCommand("token", "Print a token signed with the cluster's keys."),
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


def _verbs(group: str, summaries: Mapping[str, str]) -> dict[str, LazyCommand]:
    """Return verbs of a group, each of which is in the file of its name in the group's folder."""
    return {
        verb: LazyCommand(f"{group}.{verb.replace('-', '_')}", summary)
        for verb, summary in summaries.items()
    }


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
        verb: LazyCommand(f"{noun}s.spec_verbs", summary) for verb, summary in summaries.items()
    }


@main.group(
    cls=LazyGroup,
    lazy={
        **_spec_verbs("shard"),
        **_verbs(
            "shards",
            {
                "cancel-merge": "Give a merge up, as long as both shards serve.",
                "cancel-split": "Give a split up, as long as the new shard does not serve.",
                "dead-letters": "List the messages that a shard left out, and why.",
                "describe": "Show all that is known of a shard.",
                "hints": "Print a shard's recovery hints.",
                "list": "List shards with their state.",
                "merge": "Give the keys of two neighbours of a family to one of them, while they serve.",
                "merges": "Show the merges that are under way.",
                "moves": "Show the moves of replicas: of SHARD, or of all.",
                "pause": "Pause shards: they keep their state, and no member serves them.",
                "prune": "Remove fragments that no recovery needs from recovery logs.",
                "recover": "Write a shard's files as its recovery log has them.",
                "replay": "Publish messages that a shard left out once more.",
                "reset-source": "Make a shard continue in a source that was replaced.",
                "rewind": "Make a shard recover from a backup of its hints, or from its whole log.",
                "split": "Divide the keys of a shard between it and a new one, while it serves.",
                "splits": "Show the splits that are under way.",
                "stat": "Show the progress of a shard, as its primary reports it.",
                "unassign": "Restart shards.",
                "wait": "Wait until each shard is as it should be.",
            },
        ),
        "resume": LazyCommand("shards.pause", "Let members serve paused shards again."),
    },
)
def shards() -> None:
    """Inspect and change shards."""


@main.group(
    cls=LazyGroup,
    lazy={
        **_verbs(
            "keyed",
            {
                "get": "Look a key up in a shard's state.",
                "scan": "List the keys that begin with some fields, with their state.",
                "schema": "Show the tables, keys and variables of a shard's state.",
                "timers": "List the next timers of a shard, or of one key.",
            },
        ),
        "import": LazyCommand(
            "keyed.import_",
            "Write the state of a stopped transformWithState query for the shards of APP, which begin with it.",
        ),
    },
)
def keyed() -> None:
    """Look into the state of keyed shards by key; take over that of a Spark query."""


@main.group(
    cls=LazyGroup,
    lazy={
        **_spec_verbs("journal"),
        **_verbs(
            "journals",
            {
                "append": "Append bytes to a journal.",
                "describe": "Show all that is known of a journal.",
                "fragments": "List the fragments of a journal.",
                "list": "List journals.",
                "prune": "Remove fragments that are older than their journal's retention.",
                "publish": "Publish JSON lines as messages.",
                "quarantined": "List unknown entries that the broker moved to quarantine.",
                "read": "Write a journal's bytes to standard output.",
                "reset-head": "Accept that the end of journals was lost.",
                "roll-back": "Roll back a transaction that a dead program left open.",
                "split": "Divide the keys of a journal among two new ones, while it is written and read.",
                "splits": "Show the divisions of journals that are under way.",
                "suspend": "Suspend journals that receive no appends.",
                "verify": "Compare stored fragments with their checksums.",
                "wait": "Wait until the fragment store of each journal has it.",
            },
        ),
    },
)
def journals() -> None:
    """Inspect, change, read and write journals."""


@main.group(
    cls=LazyGroup,
    lazy={
        **_verbs(
            "leases",
            {
                "evict": "Take leases from their owners.",
                "export": "Print all leases as JSON lines, for `shardctl leases import`.",
                "list": "List leases, their owners and checkpoints.",
            },
        ),
        "import": LazyCommand("leases.import_", "Move leases and checkpoints into another store."),
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
    lazy=_verbs(
        "sink",
        {
            "delta": "Carry journals, or a topic, into a Delta table.",
            "iceberg": "Carry journals, or a topic, into an Iceberg table.",
            "kafka": "Carry journals, or a topic, into a topic of Kafka.",
        },
    ),
)
def sink() -> None:
    """Carry journals and topics out into other systems, exactly once and without code."""


@main.group(
    cls=LazyGroup,
    lazy=_verbs(
        "kafka",
        {
            "assume": "Say whether Kafka has the last records of a shard, where Kafka has forgotten.",
        },
    ),
)
def kafka() -> None:
    """Settle what shards have in Kafka."""


@main.group(
    cls=LazyGroup,
    lazy=_verbs(
        "backup",
        {
            "create": "Write journals, shards, recovery hints and leases to FILE.",
            "restore": "Make journals, shards with their recovery hints, and leases as FILE has them.",
        },
    ),
)
def backup() -> None:
    """Save what a cluster is, and make it again."""


@main.group(
    cls=LazyGroup,
    lazy=_verbs(
        "examples",
        {
            "copy": "Copy an example into a folder, to change it.",
            "list": "List the examples that are installed, with their applications and the paths of their files.",
        },
    ),
)
def examples() -> None:
    """List and copy the examples that are installed with us."""


@main.group(
    cls=LazyGroup,
    lazy={
        **_verbs(
            "contexts",
            {
                "list": "List contexts; the current one is marked.",
                "use": "Make NAME the current context.",
            },
        )
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
        **_verbs(
            "members",
            {
                "cordon": "Keep new shards from each MEMBER (zone#suffix).",
                "drain": "Let each MEMBER (zone#suffix) hand its shards over and leave.",
                "list": "List each member, its replicas, and whether it accepts more.",
                "progress": "Show the drains and moves of shards that are under way.",
            },
        ),
        "uncordon": LazyCommand(
            "members.cordon", "Let new shards come to each MEMBER (zone#suffix) again."
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
      shardctl members progress --watch
    """


if __name__ == "__main__":
    main()
