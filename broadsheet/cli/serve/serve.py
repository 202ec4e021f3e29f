"""`shardctl serve`: one member of a consumer group, in this process."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import click
import structlog
from prometheus_client import CollectorRegistry

from broadsheet.cli.application_name import load_application
from broadsheet.cli.command import plain_command
from broadsheet.cli.serve.options import ServeOptions
from broadsheet.consumer.application import Application
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.service import STOP_SIGNALS, Service, stop_on_signals
from broadsheet.leases.live_page import lease_route
from broadsheet.runtime.event_loop import run
from broadsheet.runtime.interpreter import serve_only, tend_memory
from broadsheet.runtime.log_output import guard_standard_streams
from broadsheet.runtime.logs import log_to_stderr
from broadsheet.runtime.open_files import raise_open_files_limit
from broadsheet.runtime.private_directory import keep_new_files_private
from broadsheet.runtime.task_group import TaskGroup

SERVING = "serving"
"""First word of the line on standard output that says where a ready member listens."""
ADMIN = "admin"
"""First word of the line before, which says where its admin port is."""
PATIENCE_SECONDS = 3.0
"""A member that is not ready by then says what it waits for; most are within one."""

_log = structlog.get_logger()


@plain_command("serve", ServeOptions, short_help="Run one member of an application's group.")
def serve(options: ServeOptions) -> None:
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
    log_to_stderr(options.log_level, foreign_level=logging.WARNING)
    application = load_application(options.app)
    config = options.member_config()
    metrics_host = options.metrics_host or config.listen_host
    run(_serve(application, config, options.metrics_port, metrics_host))


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
