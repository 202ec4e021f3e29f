"""One member in a task, from its announcement to its release.

    announced, serving ─┬─► the stop key appears: shards handed over ──────────────────────────────► the task returns
                        ├─► SIGTERM: shards handed over ──────────────────────────┐
                        └─► SIGHUP, or the executor is gone: shards stopped ──────┴─► lease revoked, the task fails

A task that fails is started anew by Spark, elsewhere if need be; one that returns is not. So it returns only if the
*cluster* was told to stop.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from allocator.errors import EtcdError
from allocator.etcd.api import Etcd, KeyPut
from allocator.etcd.client import EtcdClient
from allocator.runtime.task_group import TaskGroup
from consumer.application import Application
from consumer.config import MemberConfig
from consumer.member.garbage import collect_rarely
from consumer.member.service import Service
from spark_bridge.errors import ApplicationLoadError, MemberReleasedError
from spark_bridge.member.executor import on_executor_exit, own_address, zone_of
from spark_bridge.member.identity import Incarnation

log = structlog.get_logger()

_REPORT_CHARACTERS_MAX = 2_048
"""Texts in etcd are cut to this."""
_RETRY_SECONDS = 0.1
"""Before a member that failed is started again; it doubles with each attempt."""
_RETRY_SECONDS_MAX = 5.0

# `Any`: the store of the user's application is its own business.
ApplicationFactory = Callable[[], Application[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """What a member is to be, as the driver decided."""

    config: MemberConfig
    """With identity and host left to the executor."""
    application: str | ApplicationFactory
    """`module:name` of a factory that executors can import, or the factory itself."""
    zone: str | None
    """None: the executor's own."""
    stop_key: bytes
    """Appears when the cluster is told to stop."""
    failure_key: bytes
    """Where to write why the member failed."""


async def be_member(plan: MemberPlan, incarnation: Incarnation) -> None:
    """Be a member until the cluster is told to stop.

    Raises:
        MemberReleasedError: this process was told to go; everything was released.
    """
    async with EtcdClient(plan.config.etcd) as etcd:
        if (await etcd.get_range(plan.stop_key)).kvs:
            return  # told to stop while Spark started us anew
        try:
            config = _config_of(plan, incarnation)
            await _serve(etcd, config, load_application(plan.application), plan.stop_key)
        except MemberReleasedError:
            raise
        except Exception as error:
            await _report(etcd, plan.failure_key, incarnation, error)
            raise


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


def _config_of(plan: MemberPlan, incarnation: Incarnation) -> MemberConfig:
    return replace(
        plan.config,
        zone=plan.zone or zone_of(os.environ),
        suffix=incarnation.suffix,
        host=own_address(os.environ, towards=plan.config.broker_address),
        # Once more: the one before may have announced itself since the task's first look.
        revoke_predecessors_prefix=incarnation.attempts_prefix,
    )


async def _report(
    etcd: EtcdClient, failure_key: bytes, incarnation: Incarnation, error: Exception
) -> None:
    """Tell the driver, which sees no error of a task that is retried, and keep Spark from retrying in a rush."""
    log.error("member.failed", exc_info=error)
    text = f"{incarnation.suffix}: {type(error).__name__}: {error}"[:_REPORT_CHARACTERS_MAX]
    try:
        await etcd.put(failure_key, text.encode())
    except EtcdError as unreported:
        log.warning("member.failure_not_reported", cause=str(unreported))
    await asyncio.sleep(
        min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2.0 ** min(incarnation.attempt, 32))
    )


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


async def _serve(
    etcd: Etcd, config: MemberConfig, application: Application[Any], stop_key: bytes
) -> None:
    collect_rarely()
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
