"""`shardctl serve`: one member of a consumer group, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from prometheus_client import CollectorRegistry, start_http_server

from allocator.errors import AllocatorError
from allocator.etcd.config import EtcdConfig
from allocator.runtime.task_group import TaskGroup
from consumer.application import Application
from consumer.cli.application_name import load_application
from consumer.cli.connection import BROKER_ADDRESS_DEFAULT
from consumer.cli.logs import LOG_LEVELS, log_to_stderr
from consumer.config import MemberConfig
from consumer.errors import ConsumerError
from consumer.member.service import Service
from consumer.member.stop_signals import STOP_SIGNALS, stop_on_signals

SERVING = "serving"
"""First word of the line on standard output that says where a ready member listens."""


@click.command()
@click.argument("app")
@click.option(
    "--root",
    envvar="CONSUMER_ROOT",
    help="Root of the group's keys in etcd.  [default: /broadsheet/APP]",
)
@click.option(
    "--etcd",
    "endpoints",
    envvar="ETCD_ADDRESS",
    default="127.0.0.1:2379",
    help="Comma-separated endpoints.",
)
@click.option(
    "--etcd-ca-file",
    type=click.Path(path_type=Path, exists=True),
    help="Authority of etcd's certificates.",
)
@click.option(
    "--etcd-cert-file",
    type=click.Path(path_type=Path, exists=True),
    help="Our certificate for etcd.",
)
@click.option("--etcd-key-file", type=click.Path(path_type=Path, exists=True), help="Its key.")
@click.option(
    "--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT, help="Any journal broker."
)
@click.option(
    "--zone", envvar="CONSUMER_ZONE", default="local", help="Failure domain of this process."
)
@click.option("--suffix", envvar="CONSUMER_ID", help="Unique in the zone.  [default: a random one]")
@click.option(
    "--replaces",
    help="Revoke the leases of members of this zone whose suffix starts so: earlier lives of ours.",
)
@click.option(
    "--host", envvar="CONSUMER_HOST", default="127.0.0.1", help="Where others reach this process."
)
@click.option("--port", envvar="CONSUMER_PORT", default=8080, help="0 lets the system choose.")
@click.option(
    "--limit", envvar="CONSUMER_LIMIT", default=32, help="Most replicas this process takes."
)
@click.option("--max-hot-standbys", default=3, help="Bound on every shard's standbys.")
@click.option("--lease-ttl", default=20.0, help="Seconds until a silent member is replaced.")
@click.option(
    "--drain-seconds",
    default=300.0,
    help="How long a leaving member waits to hand its shards over.",
)
@click.option(
    "--drain-alone-seconds", default=5.0, help="The same while nobody is there to take them."
)
@click.option(
    "--auth-keys", envvar="AUTH_KEYS", default="", help="Base64 keys of the members' tokens."
)
@click.option(
    "--broker-auth-keys",
    envvar="BROKER_AUTH_KEYS",
    default="",
    help="Base64 keys of the brokers' tokens.",
)
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics here.")
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Least level that is logged."
)
def serve(app: str, **options: Any) -> None:
    """Serve shards with the application APP, `package.module:attribute`, until told to stop.

    The first SIGTERM or Ctrl-C hands the shards over and leaves; a second one leaves at once.

    \b
    Examples:
      shardctl serve examples.counter.app:Counter --etcd etcd-1:2379,etcd-2:2379 --broker http://broker:8080
      shardctl serve my.module:make_app --zone us-east-1a --host 10.0.0.7 --metrics-port 9090
    """
    log_to_stderr(options["log_level"])
    try:
        application = load_application(app)
        config = _config(app, options)
        asyncio.run(_serve(application, config, options["metrics_port"]))
    except (AllocatorError, ConsumerError) as error:
        raise click.ClickException(str(error)) from error


def default_root(app: str) -> str:
    """Return the root of an application's group: Gazette, too, names it after the application."""
    return f"/broadsheet/{app.partition(':')[2]}"


def _config(app: str, options: dict[str, Any]) -> MemberConfig:
    return MemberConfig(
        root=options["root"] or default_root(app),
        zone=options["zone"],
        suffix=options["suffix"] or f"member-{uuid4().hex[:8]}",
        host=options["host"],
        port=options["port"],
        etcd=EtcdConfig(
            endpoints=tuple(options["endpoints"].split(",")),
            ca_file=options["etcd_ca_file"],
            cert_file=options["etcd_cert_file"],
            key_file=options["etcd_key_file"],
        ),
        broker_address=options["broker"],
        shard_limit=options["limit"],
        hot_standbys_max=options["max_hot_standbys"],
        lease_ttl_seconds=options["lease_ttl"],
        drain_seconds_max=options["drain_seconds"],
        drain_alone_seconds_max=options["drain_alone_seconds"],
        auth_keys=options["auth_keys"],
        broker_auth_keys=options["broker_auth_keys"],
        revoke_predecessors_prefix=options["replaces"],
    )


async def _serve(
    application: Application[Any], config: MemberConfig, metrics_port: int | None
) -> None:
    registry = CollectorRegistry()
    service = Service(application, config, registry=registry)
    if metrics_port is not None:
        start_http_server(metrics_port, registry=registry)
    with stop_on_signals(service, STOP_SIGNALS):
        async with TaskGroup() as group:
            group.start_soon(_announce(service), name="announce")
            await service.run()
            group.stop()


async def _announce(service: Service) -> None:
    """Say where we serve; what keeps the member from being ready is raised by `run`."""
    await asyncio.wait([service.ready])
    if service.is_ready:
        click.echo(f"{SERVING} {service.address}")
