"""`shardctl serve`: runs one member of a consumer group in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import structlog
from prometheus_client import CollectorRegistry

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.policy import (
    SETTLE_SECONDS,
    SETTLE_SECONDS_MAX,
    AllocationPolicy,
    Balance,
    MoveLogPolicy,
    Objective,
    PrimaryPolicy,
    TransitionPolicy,
)
from broadsheet.cli.application_name import load_application
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.fragment_options import FRAGMENTS
from broadsheet.cli.shard_options import shard_config, shard_options
from broadsheet.consumer.application import Application
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.service import STOP_SIGNALS, Service, stop_on_signals
from broadsheet.consumer.rpc.call_limits import CallBounds
from broadsheet.leases.live_page import lease_route
from broadsheet.runtime.event_loop import run
from broadsheet.runtime.interpreter import serve_only, tend_memory
from broadsheet.runtime.log_output import guard_standard_streams
from broadsheet.runtime.logs import LOG_LEVELS, log_to_stderr
from broadsheet.runtime.open_files import raise_open_files_limit
from broadsheet.runtime.private_directory import keep_new_files_private
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import keys_from, trust_from
from broadsheet.security.endpoints import BROKER_ADDRESS_DEFAULT
from broadsheet.security.tls_options import server_tls_options, take_tls
from broadsheet.serving.places import option_of
from broadsheet.serving.tracing import traces_option

SERVING = "serving"
"""First word of the line on standard output that says where a ready member listens."""
ADMIN = "admin"
"""First word of the line before, which says where its admin port is."""
PATIENCE_SECONDS = 3.0
"""A member that is not ready by then says what it waits for; most are within one."""

_DAY_SECONDS = 86_400.0
_MOVE_LOG = MoveLogPolicy()

_log = structlog.get_logger()


_option = partial(click.option, show_envvar=True)


def _fragment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(FRAGMENTS.parameters):
        command = add(command)
    return command


def _call_bound_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for each in reversed(fields(CallBounds)):
        command = _option(
            option_of(each.name),
            envvar=f"CONSUMER_{each.name.upper()}",
            type=click.IntRange(min=each.metadata["least"]),
            default=each.default,
            help=each.metadata["help"],
        )(command)
    return command


@click.command(short_help="Run one member of an application's group.")
@click.argument("app")
@_option(
    "--root",
    envvar="CONSUMER_ROOT",
    help="Root of the group's keys in etcd; /broadsheet/APP, with a dot for the colon, if absent.",
)
@_option(
    "--etcd",
    "endpoints",
    envvar="ETCD_ADDRESS",
    default="127.0.0.1:2379",
    help="Comma-separated endpoints.",
)
@_option(
    "--etcd-ca-file",
    type=click.Path(path_type=Path, exists=True),
    help="Authority of etcd's certificates.",
)
@_option(
    "--etcd-cert-file",
    type=click.Path(path_type=Path, exists=True),
    help="Our certificate for etcd.",
)
@_option("--etcd-key-file", type=click.Path(path_type=Path, exists=True), help="Its key.")
@_option("--etcd-user", envvar="ETCD_USER", help="User of etcd, where it asks for one.")
@_option("--etcd-password", envvar="ETCD_PASSWORD", help="The user's password.")
@_option(
    "--etcd-request-timeout",
    type=float,
    help="Seconds that a call of etcd may take, with repetitions; half of --lease-ttl if absent, at least 5.",
)
@_option(
    "--etcd-connect-timeout",
    type=float,
    help="Seconds that an attempt to connect to etcd may take; half of --lease-ttl if absent, at least 1.",
)
@_option(
    "--etcd-probe-timeout",
    type=float,
    help="Seconds that a connection to etcd may be silent when probed; a quarter of --lease-ttl if absent, at least 3.",
)
@_option(
    "--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT, help="Any journal broker."
)
@_option("--zone", envvar="CONSUMER_ZONE", default="local", help="Failure domain of this process.")
@_option("--suffix", envvar="CONSUMER_ID", help="Unique in the zone; a random one if absent.")
@_option(
    "--replaces",
    help="Revoke the leases of earlier lives of ours: members of this zone with this suffix, or one that goes on "
    "after it with a separator (m-1: m-1 and m-1-2, not m-10; m-: all that start so).",
)
@_option(
    "--host", envvar="CONSUMER_HOST", default="127.0.0.1", help="Where others reach this process."
)
@_option("--port", envvar="CONSUMER_PORT", default=8080, help="0 lets the system choose.")
@_option(
    "--bind-host",
    envvar="CONSUMER_BIND_HOST",
    default="",
    help="Where to listen; --host if absent.",
)
@_option("--limit", envvar="CONSUMER_LIMIT", default=32, help="Most replicas this process takes.")
@_option(
    "--capacity",
    envvar="CONSUMER_CAPACITY",
    default=0,
    help="Load this process can carry beside the others, such as its CPUs; 0: its --limit.",
)
@_option(
    "--state-dir",
    envvar="CONSUMER_STATE_DIR",
    default="",
    show_default=False,
    help="Where shards with a recovery log keep their files; the system's temporary directory if absent.",
)
@_option("--max-hot-standbys", default=3, help="Bound on every shard's standbys.")
@_option("--lease-ttl", default=20.0, help="Seconds until a silent member is replaced.")
@_option(
    "--drain-seconds",
    default=300.0,
    help="How long a leaving member waits to hand its shards over; 0: it hands nothing over.",
)
@_option(
    "--drain-covered-seconds",
    default=30.0,
    help="The same while each shard left has a ready replica elsewhere; 0: it leaves them at once.",
)
@_option(
    "--drain-alone-seconds",
    default=5.0,
    help="The same while no other member stays; 0: it does not wait for one to join.",
)
@_option(
    "--balance",
    type=click.Choice([each.value for each in Balance]),
    default=Balance.TWO_SIDED.value,
    help="How even members' loads should be.",
)
@_option(
    "--settle",
    default=SETTLE_SECONDS,
    help="Seconds without a change of membership before shards move for balance alone; 0: at once.",
)
@_option(
    "--settle-max",
    default=SETTLE_SECONDS_MAX,
    help="Seconds that balance waits for that at most; 0: without a bound.",
)
@_option(
    "--drain-patience",
    default=0.0,
    help="Seconds that a drain may wait for a member that replaces the leaving one.",
)
@_option("--moves-max", default=0, help="Replicas that catch up at a time; 0: no limit.")
@_option("--moves-per-member-max", default=0, help="The same for one member.")
@_option(
    "--hand-over-spread",
    default=0,
    help="Hand primaries over when one member has so many more than another; 0: never.",
)
@_option(
    "--move-log-entries",
    default=_MOVE_LOG.entries_max,
    help="Transactions that the move log keeps; 0: none.",
)
@_option(
    "--move-log-days",
    default=_MOVE_LOG.age_seconds_max / _DAY_SECONDS,
    help="How long it keeps them.",
)
@_option(
    "--auth-keys",
    envvar="AUTH_KEYS",
    default="",
    show_default=False,
    help="Base64 keys of the members' tokens.",
)
@_option(
    "--auth-keys-file",
    envvar="AUTH_KEYS_FILE",
    type=click.Path(path_type=Path),
    help="File with such keys, in place of --auth-keys; read again when it changes.",
)
@_option(
    "--broker-auth-keys",
    envvar="BROKER_AUTH_KEYS",
    default="",
    show_default=False,
    help="Base64 keys of the brokers' tokens.",
)
@_option(
    "--broker-auth-keys-file",
    envvar="BROKER_AUTH_KEYS_FILE",
    type=click.Path(path_type=Path),
    help="File with such keys, in place of --broker-auth-keys; read again when it changes.",
)
@_option(
    "--jwks", envvar="AUTH_JWKS", help="Public keys of those who sign tokens: a file, or https://…"
)
@_option("--jwks-issuer", envvar="AUTH_JWKS_ISSUER", help="Their tokens' iss; any if absent.")
@_option("--jwks-audience", envvar="AUTH_JWKS_AUDIENCE", help="Their tokens' aud; any if absent.")
@_option(
    "--identities-file",
    envvar="AUTH_IDENTITIES_FILE",
    type=click.Path(path_type=Path),
    help="YAML file: what the certificates of clients permit; read again when it changes.",
)
@_option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Serve other machines without --auth-keys or --tls-client-ca.",
)
@server_tls_options
@_fragment_options
@shard_options
@_call_bound_options
@_option(
    "--admin-port",
    envvar="CONSUMER_ADMIN_PORT",
    type=click.IntRange(0, 65_535),
    help="Serve health, metrics and debugging over HTTP here, where gRPC listens. 0 lets the system choose.",
)
@_option(
    "--lease-store",
    "lease_stores",
    envvar="CONSUMER_LEASE_STORES",
    multiple=True,
    metavar="STORE",
    help="Show this store's leases on the live page, read only: an address as of shardctl leases. May be repeated.",
)
@_option(
    "--metrics-push",
    envvar="CONSUMER_METRICS_PUSH",
    default="",
    show_default=False,
    help="URL of a Pushgateway that gets the metrics every 15 s, where nobody can scrape them.",
)
@traces_option
@_option(
    "--metrics-port",
    type=int,
    help="Serve Prometheus metrics alone here, with those of the application.",
)
@_option(
    "--metrics-host",
    default="",
    show_default=False,
    help="Where to serve metrics; where gRPC listens if absent.",
)
@_option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Least level that is logged."
)
def serve(app: str, **options: Any) -> None:
    """Serve shards with the application APP, `package.module:attribute`, until told to stop.

    The first SIGTERM or Ctrl-C hands the shards over and leaves; a second one leaves at once.

    \b
    Examples:
      shardctl serve broadsheet.examples.counter.app:Counter \\
          --etcd etcd-1:2379,etcd-2:2379 --broker http://broker:8080
      shardctl serve my.module:make_app \\
          --zone us-east-1a --host 10.0.0.7 --metrics-port 9090 \\
          --auth-keys-file /etc/broadsheet/keys
    """
    guard_standard_streams()
    raise_open_files_limit()
    log_to_stderr(options["log_level"], foreign_level=logging.WARNING)
    with errors_in_one_line():
        application = load_application(app)
        config = member_config(app, options)
        metrics_host = options["metrics_host"] or config.listen_host
        run(_serve(application, config, options["metrics_port"], metrics_host))


def default_root(app: str) -> str:
    """Return the root of an application's group. It uses the full name, because many factories are called `create`."""
    return f"/broadsheet/{app.replace(':', '.')}"


def member_config(app: str, options: dict[str, Any]) -> MemberConfig:
    """Return the configuration of a command line.

    Args:
        app: The application's name.
        options: By parameter name, as click gives them.

    Raises:
        ValidationError: an option is out of its bounds.
    """
    return MemberConfig(
        root=options["root"] or default_root(app),
        zone=options["zone"],
        suffix=options["suffix"] or f"member-{uuid4().hex[:8]}",
        host=options["host"],
        port=options["port"],
        admin_port=options["admin_port"],
        lease_stores=options["lease_stores"],
        metrics_push_url=options["metrics_push"],
        traces=options["traces"],
        bind_host=options["bind_host"],
        etcd=EtcdConfig(
            endpoints=tuple(options["endpoints"].split(",")),
            ca_file=options["etcd_ca_file"],
            cert_file=options["etcd_cert_file"],
            key_file=options["etcd_key_file"],
            username=options["etcd_user"],
            password=options["etcd_password"],
            request_timeout_seconds=options["etcd_request_timeout"],
            connect_timeout_seconds=options["etcd_connect_timeout"],
            keep_alive_timeout_seconds=options["etcd_probe_timeout"],
        ),
        broker_address=options["broker"],
        shard_limit=options["limit"],
        capacity=options["capacity"],
        hot_standbys_max=options["max_hot_standbys"],
        state_dir=options["state_dir"],
        lease_ttl_seconds=options["lease_ttl"],
        drain_seconds_max=options["drain_seconds"],
        drain_covered_seconds_max=options["drain_covered_seconds"],
        drain_alone_seconds_max=options["drain_alone_seconds"],
        auth_keys=keys_from(options["auth_keys"], options["auth_keys_file"]),
        trust=trust_from(options),
        allow_unauthenticated=options["allow_unauthenticated"],
        tls=take_tls(options),
        fragments=FRAGMENTS.take(options),
        broker_auth_keys=keys_from(options["broker_auth_keys"], options["broker_auth_keys_file"]),
        revoke_predecessors_prefix=options["replaces"],
        watch_peers=options["watch_peers"],
        suspicion_phi=options["suspicion_phi"],
        calls=CallBounds(**{each.name: options[each.name] for each in fields(CallBounds)}),
        shards=shard_config(options),
        allocation=_policy(options),
    )


def _policy(options: dict[str, Any]) -> AllocationPolicy:
    return AllocationPolicy(
        objective=Objective(balance=Balance(options["balance"])),
        primaries=PrimaryPolicy(hand_over_above_spread=options["hand_over_spread"]),
        transition=TransitionPolicy(
            moves_per_member_max=options["moves_per_member_max"],
            moves_max=options["moves_max"],
            settle_seconds=options["settle"],
            settle_seconds_max=options["settle_max"],
            drain_patience_seconds=options["drain_patience"],
        ),
        move_log=MoveLogPolicy(
            entries_max=options["move_log_entries"],
            age_seconds_max=options["move_log_days"] * _DAY_SECONDS,
        ),
    )


async def _serve(
    application: Application[Any], config: MemberConfig, metrics_port: int | None, metrics_host: str
) -> None:
    serve_only()
    keep_new_files_private()
    service = Service(application, config, lease_route=lease_route)
    with stop_on_signals(service, STOP_SIGNALS):
        async with (
            _metrics_server(metrics_host, metrics_port, service.registry),
            TaskGroup() as group,
        ):
            group.start_soon(_announce(service, config), name="announce")
            group.start_soon(tend_memory(), name="tend memory")
            await service.run()
            group.stop()


def _metrics_server(
    host: str, port: int | None, registry: CollectorRegistry
) -> AbstractAsyncContextManager[object]:
    if port is None:
        return nullcontext()
    # Imported here, because it takes as long as all the rest.
    from broadsheet.serving.admin import metrics_server

    return metrics_server(host, port, registry)


async def _announce(service: Service, config: MemberConfig) -> None:
    """Report the address, or what the member still waits for; `run` raises what keeps it from being ready."""
    _, waiting = await asyncio.wait([service.ready], timeout=PATIENCE_SECONDS)
    if waiting:
        _log.warning(
            "member.still_joining",
            etcd=list(config.etcd.endpoints),
            member=str(config.member_id),
            why="etcd does not answer, or another process still holds this member's key",
            gives_up_after_seconds=config.announce_seconds_max,
        )
        await asyncio.wait([service.ready])
    if service.is_ready:
        if service.admin_address:
            click.echo(f"{ADMIN} {service.admin_address}")
        click.echo(f"{SERVING} {service.address}")
