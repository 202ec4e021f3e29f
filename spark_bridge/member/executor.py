"""Properties of a task's executor that Spark's TaskContext does not tell: zone, address, exit, logs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil
import structlog

from broadsheet.runtime import logs
from broadsheet.runtime.log_output import guard_standard_streams
from broadsheet.security.endpoints import parse_endpoint, parse_endpoints

ZONE_VARIABLE = "BROADSHEET_ZONE"
"""Environment variable of an executor that names its failure domain."""
_ADDRESS_VARIABLE = "SPARK_LOCAL_IP"
"""Spark's variable for the address at which a machine is reached."""
_DISCARD_PORT = 9
"""Any port works, because nothing is sent."""
_LOG_KEYS = ("timestamp", "level", "event", "logger", "shard", "task")
"""Keys of log lines that come first, in this order."""


def zone_of(environ: Mapping[str, str]) -> str:
    """Return the executor's failure domain, from its environment or else its host name."""
    return environ.get(ZONE_VARIABLE) or socket.gethostname()


def own_address(environ: Mapping[str, str], *, towards: str) -> str:
    """Return the address at which other machines reach this one.

    Args:
        environ: May set the address.
        towards: Address of a server that every member reaches; the answer is our address nearest to it.
    """
    if given := environ.get(_ADDRESS_VARIABLE):
        return given
    nearest = parse_endpoints(towards, may_be_tls=True)[0]
    target = parse_endpoint(nearest, may_be_tls=True).address
    host = target.rpartition(":")[0].strip("[]")
    if not host:
        return "127.0.0.1"  # a unix socket, so every member is on this machine
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing, but makes the kernel choose the route.
        probe.connect((host, _DISCARD_PORT))
        return str(probe.getsockname()[0])


@contextmanager
def on_executor_exit(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on the running loop if the executor's JVM ends.

    Its Python daemon sends SIGHUP then, but only if it is alive; a machine short of memory may have killed it first.
    """
    executor = _executor_process()
    if executor is None:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        # Readable when the process ends (pidfd_open(2)), so no polling is needed.
        descriptor = os.pidfd_open(executor.pid)
    except ProcessLookupError:
        loop.call_soon(callback)
        yield
        return
    try:
        loop.add_reader(descriptor, callback)
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def executor_command() -> list[str]:
    """Return the command line of the executor's JVM; empty without a JVM among our ancestors."""
    executor = _executor_process()
    return [] if executor is None else executor.cmdline()


def redirect_output(path: str) -> None:
    """Append what this process writes to its standard streams to a file, in place of those of the executor.

    For members in a notebook's own process: what they say would appear in whichever cell runs.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    finally:
        os.close(descriptor)


def log_to_stderr(*, task: str) -> None:
    """Send our logs and those of `logging` to the executor's stderr, each line with `task` and the bound context.

    The executor reads that stderr, and both may be gone before the member has left.
    """
    guard_standard_streams()
    logs.log_to_stderr(
        "debug",
        renderer=structlog.processors.LogfmtRenderer(key_order=_LOG_KEYS, drop_missing=True),
        foreign_level=logging.INFO,
        fields={"task": task},
    )


def _executor_process() -> psutil.Process | None:
    """Return the executor's JVM: our grandparent with Spark's daemon, our parent without."""
    return next((one for one in psutil.Process().parents() if one.name() == "java"), None)
