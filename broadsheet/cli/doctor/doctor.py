"""`shardctl doctor`: what is wrong with etcd, brokers, members, clocks, versions, certificates and shards."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.doctor.examination import Examination
from broadsheet.cli.doctor.findings import Finding, Severity
from broadsheet.cli.etcd_options import EtcdCredentials
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_fields
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table


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
    output: Output


@cluster_command("doctor", _DoctorOptions)
async def doctor(connection: Connection, options: _DoctorOptions) -> ExitStatus:
    """Examine the cluster: what is wrong, and what to do about it.

    Etcd, members, shards, brokers and their disks, clocks, versions, certificates. Ends with status 1 if
    anything is bad; changes nothing but a small file that a broker writes to its store and removes.

    \b
    Examples:
      shardctl doctor
      shardctl doctor --etcd etcd-1:2379,etcd-2:2379 -o json
    """
    etcd = options.credentials.config(options.endpoints) if options.endpoints else None
    examination = Examination(connection, etcd)
    await examination.run()
    _print(examination.findings, options.output)
    bad = sum(each.level is Severity.BAD for each in examination.findings)
    if not bad:
        return ExitStatus.DONE
    say(f"{counted(bad, 'thing')} wrong")
    return ExitStatus.FAILED


def _print(found: Sequence[Finding], output: OutputFormat) -> None:
    rows = [[each.level.value, each.what, each.detail, each.remedy] for each in found]
    if output is OutputFormat.TABLE:
        print_table(["STATE", "WHAT", "FOUND", "DO"], rows)
        return
    names = ("state", "what", "detail", "remedy")
    print_fields({"findings": [dict(zip(names, row, strict=True)) for row in rows]}, output)
