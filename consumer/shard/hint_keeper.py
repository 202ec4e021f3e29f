"""Keeps a primary's hints in etcd recent, so that its successor reads little of the log.

    restored      soon after: the hints that were recovered from go before the backups, our first own ones are written;
                  in a shard's first life these are the first backup, too
    then          every `hints_seconds`, or `hints_bytes` of the log, if anything was recorded; also on an idle shard
    stopped       once more

Hints are written when the log has all that they cover. A refused write means that the assignment is gone: an error.

Source: gazette/core consumer/recovery.go (when hints are rotated). Writing by bytes, on idle shards and at the end is
ours.
"""

from __future__ import annotations

import asyncio

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.consumer.recoverylog.hint_store import rotate_backup_hints, store_recorded_hints
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.replica_status import AssignmentSource
from broadsheet.runtime.backoff import Backoff
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

REST_SECONDS = 0.25
"""Delay of the first writes, so that they do not compete with clients that were waiting for a primary."""
POLL_SECONDS = 2.0
"""Time between two looks at how much was recorded."""
FLUSH_SECONDS = 5.0
"""Longest wait for the last hints of a primary that stops."""

_log = structlog.get_logger()


class HintKeeper:
    """Hints of one attempt. `run` until cancelled; `flush` at a clean end."""

    def __init__(
        self,
        recorder: Recorder,
        recovered: FSMHints,
        *,
        spec: ShardSpec,
        assignment: AssignmentSource,
        environment: ShardEnvironment,
    ) -> None:
        self._recorder = recorder
        self._recovered = recovered
        self._spec = spec
        self._assignment = assignment
        self._environment = environment
        # Hints of a parent's log would be refused in a fork's backups, and with them every later recovery.
        self._rotated = not recovered.live_nodes or recovered.log != recovery_log_of(spec)
        """Whether what was recovered from is among the backups; a shard's first life has nothing to go back to yet."""
        self._has_backup = not self._rotated
        self._stored_at_bytes = -1
        self._stored_at_monotonic_seconds = 0.0

    async def run(self) -> None:
        """Rotate once the first transactions are complete, then keep hints recent until cancelled.

        Raises:
            AssignmentLostError: the shard is no longer ours.
            ServiceError: the log cannot be written.
        """
        await asyncio.sleep(REST_SECONDS)
        await self._rotate()
        while True:
            if self._due():
                await self._store()
            await asyncio.sleep(POLL_SECONDS)

    async def flush(self) -> None:
        """Write the last hints, if that is quick; a failure leaves older hints, which are equally correct."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                if self._recorder.recorded_bytes != self._stored_at_bytes:
                    await self._rotate()
                    await self._store()
        except Exception as error:
            _log.info("hints.not_flushed", shard=self._spec.id, cause=str(error))

    def _due(self) -> bool:
        if self._stored_at_bytes < 0:
            return True
        fresh_bytes = self._recorder.recorded_bytes - self._stored_at_bytes
        if not fresh_bytes:
            return False
        config = self._environment.config
        age = self._environment.clock.monotonic_seconds() - self._stored_at_monotonic_seconds
        return fresh_bytes >= config.hints_bytes or age >= config.hints_seconds

    async def _store(self) -> None:
        recorded_bytes = self._recorder.recorded_bytes
        hints, covered = self._recorder.snapshot_hints()
        await asyncio.wrap_future(covered)
        try:
            await store_recorded_hints(
                self._environment.etcd, self._spec, self._assignment(), hints
            )
        except EtcdError as error:
            _log.warning("hints.not_stored", shard=self._spec.id, cause=str(error))
            return  # The next look tries again.
        self._stored_at_bytes = recorded_bytes
        self._stored_at_monotonic_seconds = self._environment.clock.monotonic_seconds()
        # A first life may be long, and end in a damaged log: then there is something to rewind to.
        if not self._has_backup and hints.live_nodes:
            self._recovered, self._rotated, self._has_backup = hints, False, True
            await self._rotate()

    async def _rotate(self) -> None:
        backoff = Backoff()
        while not self._rotated:
            try:
                await rotate_backup_hints(
                    self._environment.etcd, self._spec, self._assignment(), self._recovered
                )
            except EtcdError as error:
                _log.warning("hints.not_rotated", shard=self._spec.id, cause=str(error))
                await backoff.sleep()
            else:
                self._rotated = True
