"""What runs in each task: one member, from its announcement to its release.

    the task starts ─► leases of earlier attempts revoked ─► announced, serving ─┬─► the stop key appears
                                                                                 ├─► SIGTERM, SIGHUP
    the task ends ◄── lease revoked ◄── shards stopped ◄─────────────────────────┴─► the executor is gone

It runs in the main thread of a Python worker, a process that Spark forked for this task alone. gRPC must not be used
before a fork and after it: nothing that forks (the daemon) imports this module, and the driver only pickles the task.

The task *returns* only if the cluster was told to stop. If its process was, it fails, so that Spark starts it anew.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from allocator.etcd.api import Etcd, KeyPut
from allocator.etcd.client import EtcdClient
from allocator.runtime.task_group import TaskGroup
from consumer.application import Application
from consumer.config import MemberConfig
from consumer.service import Service
from spark_bridge.errors import ApplicationLoadError, MemberReleasedError
from spark_bridge.executor import log_to_stderr, on_executor_exit, own_address, zone_of
from spark_bridge.identity import Incarnation

log = structlog.get_logger()

# `Any`: the store of the user's application is its own business.
ApplicationFactory = Callable[[], Application[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """What a task says when its member is gone."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTask:
    """The function that Spark ships to executors; everything in it is pickled."""

    application_id: str
    application: str | ApplicationFactory
    """`module:name` of a factory that executors can import, or the factory itself."""
    config: MemberConfig
    """With identity and host left to the executor."""
    zone: str | None
    """None: the executor's own."""
    stop_key: bytes

    def __call__(self, partition: int, rows: Iterable[int]) -> Iterator[MemberResult]:
        """Be member number `partition` until told to stop."""
        from pyspark import TaskContext

        del rows
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        incarnation = Incarnation(
            application_id=self.application_id,
            partition=partition,
            attempt=context.attemptNumber(),
        )
        config = replace(
            self.config,
            zone=self.zone or zone_of(os.environ),
            suffix=incarnation.suffix,
            host=own_address(os.environ, towards=self.config.broker_address),
            # Spark starts an attempt once it holds the one before for failed: nobody shall wait for its lease.
            revoke_predecessors_prefix=incarnation.attempts_prefix,
        )
        log_to_stderr(member=str(config.member_id))
        application = load_application(self.application)
        asyncio.run(_run(config, application, self.stop_key))
        yield MemberResult(member_id=str(config.member_id))


def load_application(application: str | ApplicationFactory) -> Application[Any]:
    """Make the user's application.

    Raises:
        ApplicationLoadError: the name does not lead to a factory.
    """
    if not isinstance(application, str):
        return application()
    module_name, separator, name = application.partition(":")
    if not separator or not name:
        raise ApplicationLoadError(f"application: expected module:factory, got {application!r}")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ApplicationLoadError(
            f"application {application!r} cannot be imported: {error}"
        ) from error
    made: Application[Any] = factory()
    return made


class _Departure:
    """Why and how the member leaves; the first reason counts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.reason = ""
        self.told = False
        """Whether the cluster was told to stop, rather than this process."""

    def leave(self, reason: str, *, told: bool = False) -> None:
        """Hand the shards over, then leave."""
        self._note(reason, told=told)
        self._service.stop()

    def leave_now(self, reason: str) -> None:
        """Stop the shards and leave: the executor is gone, and Spark starts our successor already."""
        self._note(reason, told=False)
        self._service.force_stop()

    def _note(self, reason: str, *, told: bool) -> None:
        log.info("member.leaving", reason=reason)
        if not self.reason:
            self.reason, self.told = reason, told


async def _run(config: MemberConfig, application: Application[Any], stop_key: bytes) -> None:
    async with EtcdClient(config.etcd) as etcd:
        service = Service(application, config)
        departure = _Departure(service)
        with _on_signals(departure), on_executor_exit(lambda: departure.leave_now("executor exit")):
            async with TaskGroup() as group:
                group.start_soon(_leave_when_told(etcd, stop_key, departure), name="stop key")
                await service.run()
                group.stop()
    if not departure.told:
        raise MemberReleasedError(f"left on {departure.reason or 'its own'}, after a clean release")


async def _leave_when_told(etcd: Etcd, stop_key: bytes, departure: _Departure) -> None:
    found = await etcd.get_range(stop_key)
    if found.kvs:
        departure.leave("stop key", told=True)
        return
    async for batch in etcd.watch(stop_key, start_revision=found.header.revision + 1):
        if any(isinstance(event, KeyPut) for event in batch.events):
            departure.leave("stop key", told=True)
            return


@contextmanager
def _on_signals(departure: _Departure) -> Iterator[None]:
    """Leave on SIGTERM; leave at once on SIGHUP, which the daemon sends when the executor is gone."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, departure.leave, "SIGTERM")
    loop.add_signal_handler(signal.SIGHUP, departure.leave_now, "SIGHUP")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGHUP)
