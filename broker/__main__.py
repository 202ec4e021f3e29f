"""Run the broker as a separate process: `python -m broadsheet.broker`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.runtime.log_output import guard_standard_streams, open_standard_descriptors
from broadsheet.runtime.open_files import raise_open_files_limit

# Before any file is opened, which would get the number of a standard descriptor that is closed.
open_standard_descriptors()
# Before gRPC is imported: it would print a line for each failed handshake of TLS, which anybody can cause as often as
# they like.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from broadsheet.broker.config import (
    DIRECT_COMMIT_BYTES_MAX,
    SCRUB_BYTES_PER_SECOND,
    SPARE_BYTES_MAX,
    BrokerConfig,
    Durability,
    bound_options,
    bounds_of,
)
from broadsheet.broker.disk import Disk
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.server import Broker
from broadsheet.broker.strangers import ACCEPT_OPTION, locked_quarantine, restore_entry
from broadsheet.runtime.errors import os_error_text
from broadsheet.runtime.event_loop import run
from broadsheet.runtime.interpreter import return_freed_memory, serve_only, share_heaps, tend_memory
from broadsheet.runtime.logs import LOG_LEVELS, log_to_stderr
from broadsheet.runtime.private_directory import keep_new_files_private
from broadsheet.runtime.process_signals import handled_on_loop
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import keys_from, trust_from
from broadsheet.security.tls_options import server_tls_options, take_tls
from broadsheet.serving.tracing import traces_exported, traces_option

TRIM_SECONDS = 10.0
"""Interval between checks of whether free memory should be given back to the system."""
BURST_BYTES = 32 << 20
"""Bytes held for clients; after more than these, the next check gives free memory back."""


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT; port 0 is any."
)
@click.option(
    "--durability", default="always", show_default=True, help="always, interval=<ms> or off."
)
@click.option("--auth-keys", envvar="BROKER_AUTH_KEYS", default="", help="Base64 keys, by commas.")
@click.option(
    "--auth-keys-file",
    envvar="BROKER_AUTH_KEYS_FILE",
    type=click.Path(path_type=Path),
    help="File with such keys, in place of --auth-keys; read again when it changes.",
)
@click.option(
    "--jwks",
    envvar="BROKER_AUTH_JWKS",
    help="Public keys of those who sign tokens: a file, or https://…",
)
@click.option(
    "--jwks-issuer", envvar="BROKER_AUTH_JWKS_ISSUER", help="Their tokens' iss; any if absent."
)
@click.option(
    "--jwks-audience", envvar="BROKER_AUTH_JWKS_AUDIENCE", help="Their tokens' aud; any if absent."
)
@click.option(
    "--identities-file",
    envvar="BROKER_AUTH_IDENTITIES_FILE",
    type=click.Path(path_type=Path),
    help="YAML file: what the certificates of clients permit; read again when it changes.",
)
@click.option("--allow-unauthenticated", is_flag=True, help="Serve other machines without keys.")
@server_tls_options
@click.option(
    "--spare-bytes",
    type=click.IntRange(min=0),
    default=SPARE_BYTES_MAX,
    show_default=True,
    help="Bytes of removed fragments' files kept for reuse; 0 keeps none.",
)
@click.option(
    "--direct-commit-bytes",
    type=click.IntRange(min=0),
    default=DIRECT_COMMIT_BYTES_MAX,
    show_default=True,
    help="Largest commit that the event loop makes itself on a fast disk, bytes; 0: none.",
)
@click.option(
    "--scrub-bytes-per-second",
    type=click.IntRange(min=0),
    default=SCRUB_BYTES_PER_SECOND,
    show_default=True,
    help="Bytes of sealed fragments verified in the background, once a day; 0: none.",
)
@click.option(
    "--admin-port",
    envvar="BROKER_ADMIN_PORT",
    type=click.IntRange(0, 65_535),
    help="Serve health, metrics and debugging over HTTP here, on the host of --listen; 0 is any port.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), help="Serve Prometheus metrics alone."
)
@click.option(
    "--metrics-host", default="", help="Address of the metrics; the host of --listen if absent."
)
@click.option(
    "--file-root",
    envvar="BROKER_FILE_ROOT",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Root of file:// stores: publish sealed fragments of journals with such a store below it.",
)
@click.option(
    "--cloud-store",
    "cloud_stores",
    multiple=True,
    metavar="URL",
    help="s3://, gs:// or azure:// store to which journals may publish, with all below it; may be repeated.",
)
@click.option(
    "--local-fragment-bytes",
    type=click.IntRange(min=0),
    help="Bytes of published fragments that also stay in --data-dir; all if absent.",
)
@click.option("--retention", is_flag=True, help="Delete fragments older than their retention.")
@click.option(
    ACCEPT_OPTION,
    is_flag=True,
    help="Start although the catalogue lost changes; journals that it lacks are quarantined.",
)
@click.option("--list-quarantine", is_flag=True, help="List what was moved aside, and end.")
@click.option("--restore-quarantined", metavar="ID", help="Put an entry back, and end.")
@click.option("--purge-quarantined", metavar="ID", help="Remove an entry permanently, and end.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Least level that is logged.",
)
@bound_options
@traces_option
# `Any`: options differ in type.
def main(**options: Any) -> None:
    """Serve journals from one directory. One copy of the data: on this disk."""
    data_dir: Path = options["data_dir"]
    restore, purge = options["restore_quarantined"], options["purge_quarantined"]
    if options["list_quarantine"] or restore or purge:
        with _errors_in_one_line(data_dir):
            _tend_quarantine(data_dir, restore=restore, purge=purge)
        return
    guard_standard_streams()
    raise_open_files_limit()
    log_to_stderr(options["log_level"], foreign_level=logging.WARNING)
    host, _, port = options["listen"].rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(
            f"expected HOST:PORT, got {options['listen']!r}", param_hint="--listen"
        )
    with _errors_in_one_line(data_dir):
        config = _config(options, host.strip("[]"), int(port))
        with traces_exported("broadsheet-broker", wanted=options["traces"]):
            run(_serve(config, options["metrics_port"], options["metrics_host"] or config.host))


class _WrongOptionError(click.ClickException):
    """A value that the broker cannot use; the process ends as with the mistakes that click finds by itself."""

    exit_code = 2


def _config(options: dict[str, Any], host: str, port: int) -> BrokerConfig:
    try:
        return BrokerConfig(
            data_dir=options["data_dir"],
            host=host,
            port=port,
            admin_port=options["admin_port"],
            durability=Durability.parse(options["durability"]),
            auth_keys=keys_from(options["auth_keys"], options["auth_keys_file"]),
            trust=trust_from(options),
            allow_unauthenticated=options["allow_unauthenticated"],
            tls=take_tls(options),
            spare_bytes_max=options["spare_bytes"],
            direct_commit_bytes_max=options["direct_commit_bytes"],
            scrub_bytes_per_second=options["scrub_bytes_per_second"],
            file_root=options["file_root"],
            cloud_stores=options["cloud_stores"],
            local_fragment_bytes_max=options["local_fragment_bytes"],
            accept_catalogue_loss=options["accept_catalogue_loss"],
            retention_enabled=options["retention"],
            bounds=bounds_of(options),
        )
    except ValidationError as error:
        raise _WrongOptionError(str(error)) from error


@contextmanager
def _errors_in_one_line(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except BroadsheetError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(
            f"the data in {data_dir} cannot be used: {os_error_text(error)}"
        ) from error


def _tend_quarantine(data_dir: Path, *, restore: str | None, purge: str | None) -> None:
    """Change or list the quarantine of a stopped broker."""
    if restore:
        click.echo(f"restored to {restore_entry(data_dir, restore)}")
    elif purge:
        with locked_quarantine(data_dir) as quarantine:
            quarantine.purge(purge)
        click.echo(f"purged {purge}")
    else:
        for entry in JournalQuarantine(Disk(), data_dir).entries():
            reason = entry.reason
            click.echo(
                f"{entry.id}  {entry.bytes}  {reason.journal or '-'}  {reason.path}: {reason.why}"
            )


async def _serve(config: BrokerConfig, metrics_port: int | None, metrics_host: str) -> None:
    stop = asyncio.Event()
    keep_new_files_private()
    share_heaps()  # Set before the broker starts its threads.
    with handled_on_loop({signal.SIGINT: stop.set, signal.SIGTERM: stop.set}):
        await _serve_until(stop, config, metrics_port, metrics_host)


async def _serve_until(
    stop: asyncio.Event, config: BrokerConfig, metrics_port: int | None, metrics_host: str
) -> None:
    async with (
        Broker(config) as broker,
        _metrics_server(broker, metrics_host, metrics_port),
        TaskGroup() as group,
    ):
        serve_only()
        group.start_soon(tend_memory(), name="tend memory")
        if broker.admin_address:
            click.echo(f"admin {broker.admin_address}")
        click.echo(f"listening {broker.address}")
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRIM_SECONDS):
                    await stop.wait()
            if broker.limits.take_peak_bytes() >= BURST_BYTES:
                await asyncio.to_thread(return_freed_memory)
        group.stop()


def _metrics_server(
    broker: Broker, host: str, port: int | None
) -> contextlib.AbstractAsyncContextManager[object]:
    if port is None:
        return contextlib.nullcontext()
    # Imported here, because it takes as long as all the rest.
    from broadsheet.serving.admin import metrics_server

    return metrics_server(host, port, broker.registry)


if __name__ == "__main__":
    main()
