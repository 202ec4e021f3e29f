"""`shardctl doctor`: what is wrong with etcd, brokers, members, clocks, versions, certificates and shards."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.doctor.examination import Examination
from broadsheet.cli.doctor.findings import Severity
from broadsheet.cli.etcd_options import EtcdCredentials
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.sink.sink_specs import settings_of


@command_options
class _DoctorOptions:
    endpoints: str = option(
        "Comma-separated endpoints of etcd, to examine that, too.",
        "--etcd",
        env="ETCD_ADDRESS",
        default="",
        show_default=False,
    )
    credentials: EtcdCredentials
    kafka: tuple[str, ...] = option(
        "A setting NAME=VALUE of Kafka's client, at least bootstrap.servers, to examine the Kafka that shards send "
        "into, too; NAME=@/PATH reads a file. May be repeated.",
        "--kafka",
        multiple=True,
    )
    output: Output


@cluster_command("doctor", _DoctorOptions)
async def doctor(connection: Connection, options: _DoctorOptions) -> ExitStatus:
    """Examine the cluster: what is wrong, and what to do about it.

    Etcd, members, shards, brokers and their disks, clocks, versions, certificates. Ends with status 1 if
    anything is bad; changes nothing but a small file that a broker writes to its store and removes. With --kafka also
    the topics, groups, limits and retention of a Kafka that shards send into.

    \b
    Examples:
      shardctl doctor
      shardctl doctor --etcd etcd-1:2379,etcd-2:2379 -o json
      shardctl doctor --kafka bootstrap.servers=broker:9092
    """
    etcd = options.credentials.config(options.endpoints) if options.endpoints else None
    examination = Examination(connection, etcd, kafka=settings_of(options.kafka, "--kafka"))
    await examination.run()
    rows = [
        (each.level.value, each.what, each.detail, each.remedy) for each in examination.findings
    ]
    names = ("state", "what", "detail", "remedy")
    items = [dict(zip(names, row, strict=True)) for row in rows]
    print_list(options.output, "findings", items, ["STATE", "WHAT", "FOUND", "DO"], rows)
    bad = sum(each.level is Severity.BAD for each in examination.findings)
    if not bad:
        return ExitStatus.DONE
    say(f"{counted(bad, 'thing')} wrong")
    return ExitStatus.FAILED
