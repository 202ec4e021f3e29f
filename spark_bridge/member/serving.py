"""Runs one member in a task, from its announcement to its release.

    announced, serving ─┬─► the order to leave: shards handed over ────────────────────────────────► the task returns
                        ├─► SIGTERM, or the order to move: shards handed over ────┐
                        └─► SIGHUP, or the executor is gone: shards stopped ──────┴─► lease revoked, the task fails

Spark restarts a task that fails, elsewhere if necessary, but not one that returns. So the task returns only if this
member, or the whole cluster, was ordered to leave for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from broadsheet.allocator.errors import (
    EtcdError,
    EtcdUnavailableError,
    RevisionCompactedError,
)
from broadsheet.allocator.etcd.api import Etcd, KeyPut
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.application import Application
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.service import Service, Stoppable
from broadsheet.leases.live_page import lease_route
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.interpreter import serve_only, tend_memory
from broadsheet.runtime.process_signals import handled_on_loop
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.spark_bridge.errors import MemberReleasedError
from broadsheet.spark_bridge.member.application import (
    ApplicationFactory,
    Arguments,
    load_application,
)
from broadsheet.spark_bridge.member.executor import (
    executor_command,
    on_executor_exit,
    own_address,
    zone_of,
)
from broadsheet.spark_bridge.member.identity import (
    LOG_VARIABLE,
    Incarnation,
    encode_host,
    host_key,
    host_of,
)
from broadsheet.spark_bridge.member.orders import Order, order_to

_log = structlog.get_logger()

_REPORT_CHARACTERS_MAX = 2_048
"""Longest text written to etcd, characters."""
_RETRY_SECONDS = 0.1
"""First delay before a failed member is restarted; it doubles with each attempt."""
_RETRY_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """A member's configuration, as the driver decided."""

    config: MemberConfig
    """Configuration without identity and host, which the executor sets."""
    application: str | ApplicationFactory
    """`module:name` of a factory that executors can import, or the factory itself."""
    zone: str | None
    """Failure domain; None: the executor's."""
    arguments: Arguments
    """Arguments for a factory that takes them."""
    orders_prefix: bytes
    """Prefix of the keys of orders."""
    hosts_prefix: bytes
    """Prefix of the keys of members' hosts."""
    failure_key: bytes
    """Key for the reason of a failure."""
    log_file: str
    """File of the member's log, if it is not the executor's."""


async def be_member(plan: MemberPlan, incarnation: Incarnation) -> None:
    """Run a member until it is ordered to leave for good.

    Raises:
        MemberReleasedError: this process was told to end or to move; everything was released.
    """
    async with EtcdClient(plan.config.etcd) as etcd:
        orders = Orders(etcd, plan.orders_prefix, incarnation)
        if await orders.read() is Order.LEAVE:
            return  # ordered while Spark restarted us
        try:
            place = host_of(
                incarnation,
                executor_command=executor_command(),
                log_url=plan.log_file or os.environ.get(LOG_VARIABLE, ""),
            )
            await etcd.put(host_key(plan.hosts_prefix, incarnation.partition), encode_host(place))
            config = _config_of(plan, incarnation)
            application = load_application(plan.application, plan.arguments)
            await _serve(config, application, orders)
        except MemberReleasedError:
            raise
        except Exception as error:
            await _report(etcd, plan.failure_key, incarnation, error)
            raise


def _config_of(plan: MemberPlan, incarnation: Incarnation) -> MemberConfig:
    return replace(
        plan.config,
        zone=plan.zone or zone_of(os.environ),
        suffix=incarnation.suffix,
        host=own_address(os.environ, towards=plan.config.broker_address),
        # Once more, because the earlier attempt may have announced itself since the task's first look.
        revoke_predecessors_prefix=incarnation.attempts_prefix,
        # Spark starts a task again on any executor, and its suffix names application, task and attempt.
        revoke_in_any_zone=True,
    )


async def _report(
    etcd: EtcdClient, failure_key: bytes, incarnation: Incarnation, error: Exception
) -> None:
    """Report a failure to the driver, which sees no error of a retried task, and delay Spark's retry."""
    _log.error("member.failed", exc_info=error)
    text = f"{incarnation.suffix}: {type(error).__name__}: {error}"[:_REPORT_CHARACTERS_MAX]
    try:
        await etcd.put(failure_key, text.encode())
    except EtcdError as unreported:
        _log.warning("member.failure_not_reported", cause=str(unreported))
    await asyncio.sleep(
        min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2.0 ** min(incarnation.attempt, 32))
    )


class Orders:
    """The driver's orders to one member."""

    def __init__(self, etcd: Etcd, prefix: bytes, incarnation: Incarnation) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._incarnation = incarnation
        self._revision = 0

    async def read(self) -> Order | None:
        """Return the present order."""
        found = await self._etcd.get_range(self._prefix, prefix_range_end(self._prefix))
        self._revision = found.header.revision
        return self._among(kv.key for kv in found.kvs)

    async def wait(self) -> Order:
        """Return the present order, or else wait for the first one.

        An etcd that does not answer ends no member: its lease does, if that lasts.
        """
        backoff = Backoff(max_seconds=_RETRY_SECONDS_MAX)
        while True:
            try:
                order = await self.read()
            except EtcdUnavailableError as error:
                _log.warning("orders.unread", cause=str(error))
                await backoff.sleep()
                continue
            backoff.reset()
            if order is not None:
                return order
            # If etcd has compacted our revision, the present order is read again.
            with suppress(RevisionCompactedError):
                return await self._next()

    async def _next(self) -> Order:
        async for batch in self._etcd.watch(self._prefix, start_revision=self._revision + 1):
            order = self._among(each.kv.key for each in batch.events if isinstance(each, KeyPut))
            if order is not None:
                return order
        raise AssertionError("a watch never ends")

    def _among(self, keys: Iterable[bytes]) -> Order | None:
        return order_to(self._incarnation, prefix=self._prefix, keys=keys)


class Departure:
    """The reason and the way of a member's leaving; the first reason counts."""

    def __init__(self, service: Stoppable) -> None:
        self._service = service
        self.reason = ""
        self.for_good = False
        """Whether the member leaves for good, so that Spark must not restart it."""

    def leave(self, reason: str, *, for_good: bool = False) -> None:
        """Hand the shards over, then leave."""
        self._note(reason, for_good=for_good)
        # Act first, then tell.
        self._service.stop()
        _log.info("member.leaving", reason=reason)

    def leave_now(self, reason: str) -> None:
        """Stop the shards and leave at once, because the executor is gone and Spark already starts our successor."""
        self._note(reason, for_good=False)
        self._service.force_stop()
        _log.info("member.leaving", reason=reason)

    def _note(self, reason: str, *, for_good: bool) -> None:
        if not self.reason:
            self.reason, self.for_good = reason, for_good


async def _serve(config: MemberConfig, application: Application[Any], orders: Orders) -> None:
    serve_only()
    service = Service(application, config, lease_route=lease_route)
    departure = Departure(service)
    with _on_signals(departure), on_executor_exit(lambda: departure.leave_now("executor exit")):
        async with TaskGroup() as group:
            group.start_soon(_obey(orders, departure), name="orders")
            group.start_soon(tend_memory(), name="tend memory")
            await service.run()
            group.stop()
    # The order to leave may have come while the member was leaving for another reason.
    if not departure.for_good and await orders.read() is not Order.LEAVE:
        raise MemberReleasedError(f"left on {departure.reason or 'its own'}, after a clean release")


async def _obey(orders: Orders, departure: Departure) -> None:
    order = await orders.wait()
    departure.leave(f"the order to {order.value}", for_good=order is Order.LEAVE)


def _on_signals(departure: Departure) -> AbstractContextManager[None]:
    """Leave on SIGTERM; leave at once on SIGHUP, which the daemon sends when the executor is gone."""
    return handled_on_loop(
        {
            signal.SIGTERM: partial(departure.leave, "SIGTERM"),
            signal.SIGHUP: partial(departure.leave_now, "SIGHUP"),
        }
    )
