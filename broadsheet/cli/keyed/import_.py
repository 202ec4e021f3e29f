"""`shardctl keyed import`: the state of a stopped query of Spark's, for shards that go on with it."""

from __future__ import annotations

from typing import Any

from broadsheet.cli.application_name import load_application, load_attribute
from broadsheet.cli.command import plain_command
from broadsheet.cli.errors import option_values
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_fields
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError

_BRIDGE = "broadsheet.spark_bridge"
_OPTIONS = {"checkpoint": "--checkpoint", "batch_id": "--batch-id", "operator_id": "--operator-id"}


@command_options
class _ImportOptions:
    app: str = argument()
    checkpoint: str = option("The query's checkpoint location.", required=True, metavar="PATH")
    batch_id: int | None = option(
        "Take over the state of this batch; of the last one that is committed if absent.",
        type=int,
    )
    operator_id: int | None = option(
        "Take over the state of this operator, where the query has several transformWithState.",
        type=int,
    )
    master: str = option("The Spark that reads the checkpoint.", default="local[*]")
    conf: tuple[str, ...] = option(
        "A setting of its session, such as credentials of the checkpoint's file system.",
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        default=(),
        show_default=False,
    )
    output: Output


@plain_command("import", _ImportOptions)
def import_keyed_state(options: _ImportOptions) -> None:
    """Write the state of a stopped transformWithState query for the shards of APP, which begin with it.

    APP is the application with `takeOver`: it names the place that is written, and the journals whose shards own the
    keys. Each shard imports its part when it first starts, compares counts, and refuses to start if they differ.
    Nothing is changed in the checkpoint. Stop the query first.

    \b
    Examples:
      shardctl keyed import shop:visits --checkpoint /data/checkpoints/visits
      shardctl keyed import shop:visits --checkpoint s3a://shop/visits \\
          --master spark://spark:7077 --conf spark.hadoop.fs.s3a.endpoint=…
      shardctl keyed import shop:visits --checkpoint /data/visits --batch-id 41
    """
    application = load_application(options.app)
    if getattr(application, "imported", None) is None:
        raise ValidationError("APP", f"{options.app} has no takeOver=StateImport(…)")
    start = load_attribute(f"{_BRIDGE}:start_session", option="--master")
    import_state = load_attribute(f"{_BRIDGE}.keyed:import_state", option="APP")
    session = start(options.master, app_name="shardctl keyed import", conf=_conf(options.conf))
    session.sparkContext.setLogLevel("ERROR")
    try:
        with option_values(_OPTIONS):
            report = import_state(
                session,
                application,
                options.checkpoint,
                batch_id=options.batch_id,
                operator_id=options.operator_id,
            )
    finally:
        session.stop()
    _print(report, options.output)


def _conf(settings: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in settings:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise ValidationError("--conf", f"expected NAME=VALUE, got {each!r}")
        found[name] = value
    return found


def _print(report: Any, output: OutputFormat) -> None:
    """Print a report of `broadsheet.spark_bridge.keyed`, which is above commands."""
    batch = report.batch
    fields = {
        "place": report.place,
        "id": report.id,
        "batch": batch.number,
        "batch_ms": batch.batch_ms,
        "watermark_ms": batch.watermark_ms,
        "rows": dict(report.rows),
        "timers": report.timers,
        "rows_by_journal": dict(report.by_owner),
        "positions": sorted(batch.positions),
        "told": list(batch.told),
    }
    if output is not OutputFormat.TABLE:
        print_fields(fields, output)
        return
    rows = [[name, str(number)] for name, number in report.rows.items()]
    print_table(["VARIABLE", "ROWS"], [*rows, ["(timers)", str(report.timers)]])
    if any(report.by_owner):
        owners = sorted(report.by_owner.items())
        print_table(["JOURNAL", "ROWS"], [[name, str(number)] for name, number in owners])
    say(f"batch {batch.number}, watermark {batch.watermark_ms} ms, written to {report.place}")
    if batch.positions:
        say(f"shards go on in {counted(len(batch.positions), 'journal')} where the query ended")
    for each in batch.told:
        say(f"not taken over, the query's position in {each}")
