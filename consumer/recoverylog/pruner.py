"""The pruner of a cluster's recovery logs: removes the fragments that no hints of any shard need.

Hints are read before fragments are listed. So a fragment written in between is after the last segment of some hints,
and needed; and hints written in between need no older bytes than the hints before them.

Source: gazette/core cmd/gazctl/gazctlcmd/shards_prune.go (steps for each log). All shards instead of a selection, the
quarantine, and deletion by the broker are ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import structlog

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.ops import Compare, Delete, KeyValue, Operation, Put, prefix_range_end
from broadsheet.consumer.recoverylog.hint_store import read_cluster_hints
from broadsheet.consumer.recoverylog.liveness import ENDLESS, LogNeeds, live_logs
from broadsheet.consumer.recoverylog.prune_plan import (
    LogListing,
    LogPlan,
    PruneCounts,
    QuarantineRecord,
    decode_quarantine,
    encode_quarantine,
    plan_log,
    spared_log,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import EndpointError, ServiceError
from broadsheet.runtime.formats import LaterFormatError

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOutcome:
    """The result of a prune for one log."""

    plan: LogPlan
    removed: PruneCounts = field(default_factory=PruneCounts)
    failed: PruneCounts = field(default_factory=PruneCounts)
    """Fragments that should have been removed, and were not."""
    failure: str = ""
    """Reason of the failure."""


class Pruner:
    """The pruner below one root: plans and prunes."""

    def __init__(self, etcd: Etcd, journals: JournalClient, keys: Keys, *, clock: Clock) -> None:
        """Create a pruner.

        Args:
            etcd: Holds specs and hints, and the records of what is known to be dead.
            journals: Lists and removes fragments.
            keys: Of the root.
            clock: Measures how long a fragment has been dead.
        """
        self._etcd = etcd
        self._journals = journals
        self._keys = keys
        self._prefix = AuxiliaryKeys(keys.root).prefix + b"prune/"
        self._clock = clock

    async def plan(self, *, delay_seconds: float) -> AsyncIterator[LogPlan]:
        """Yield the plan of a prune for each log, by name; change nothing.

        Args:
            delay_seconds: Time for which a fragment must have been dead.

        Raises:
            EndpointError: no broker could be reached.
            EtcdUnavailableError: etcd did not answer.
        """
        known = await self._read_known()
        for needs in await self._read_needs():
            yield await self._plan_log(needs, known.get(needs.log), delay_seconds)

    async def prune(self, *, delay_seconds: float) -> AsyncIterator[PruneOutcome]:
        """Prune one log after the other, and yield the results.

        Args:
            delay_seconds: Time for which a fragment must have been dead.

        Raises:
            EndpointError: no broker could be reached; logs before this one are pruned.
            EtcdUnavailableError: etcd did not answer; logs before this one are pruned.
        """
        known = await self._read_known()
        all_needs = await self._read_needs()
        for name in known.keys() - {needs.log for needs in all_needs}:
            await self._write_known(name, known[name], QuarantineRecord())
        for needs in all_needs:
            plan = await self._plan_log(needs, known.get(needs.log), delay_seconds)
            yield await self._carry_out(plan, needs, known.get(needs.log))

    # -- deciding

    async def _read_needs(self) -> list[LogNeeds]:
        hints = await read_cluster_hints(self._etcd, self._keys)
        return live_logs(hints.shards, unreadable_specs=hints.unreadable_specs)

    async def _plan_log(
        self, needs: LogNeeds, known: KeyValue | None, delay_seconds: float
    ) -> LogPlan:
        if needs.spared:
            return spared_log(needs, needs.spared)
        try:
            listed = await self._journals.get(needs.log)
            fragments = await self._journals.list_fragments(needs.log)
            quarantine = QuarantineRecord() if known is None else decode_quarantine(known.value)
        except EndpointError:
            # Without any broker the prune ends, instead of sparing every log.
            raise
        except JournalNotFoundError:
            return spared_log(needs, "there is no such journal")
        except ServiceError as error:
            return spared_log(needs, str(error))
        except LaterFormatError as error:
            # Its record stays as it is: with a new one, the later release would wait again before it removes anything.
            return spared_log(needs, str(error))
        return plan_log(
            needs,
            LogListing(listed.create_revision, [each.spec for each in fragments]),
            quarantine,
            now=int(self._clock.wall_seconds()),
            delay_seconds=delay_seconds,
        )

    # -- acting

    async def _carry_out(
        self, plan: LogPlan, needs: LogNeeds, known: KeyValue | None
    ) -> PruneOutcome:
        outcome = PruneOutcome(plan=plan)
        removed: set[tuple[int, int]] = set()
        if plan.dead:
            outcome, removed = await self._remove(plan)
            _tell(outcome, needs)
        # A log that could not be listed keeps its record, so that its quarantine does not start over.
        if (not plan.spared or needs.spared) and not _is_of_later_release(known):
            await self._write_known(plan.log, known, plan.quarantine_after(removed))
        return outcome

    async def _remove(self, plan: LogPlan) -> tuple[PruneOutcome, set[tuple[int, int]]]:
        failure = ""
        gone: set[tuple[int, int]] = set()
        try:
            deleted = await self._journals.delete_fragments(plan.log, plan.dead)
            gone = {(each.begin, each.end) for each in deleted}
        except EndpointError:
            raise
        except ServiceError as error:
            failure = str(error)
        removed, failed = PruneCounts(), PruneCounts()
        for fragment in plan.dead:
            (removed if (fragment.begin, fragment.end) in gone else failed).add(fragment)
        if failed.fragments and not failure:
            failure = "they are no longer as the broker had listed them"
        return PruneOutcome(plan=plan, removed=removed, failed=failed, failure=failure), gone

    async def _read_known(self) -> Mapping[str, KeyValue]:
        """Return the stored records by log."""
        found = await self._etcd.get_range(self._prefix, prefix_range_end(self._prefix))
        return {kv.key[len(self._prefix) :].decode(errors="replace"): kv for kv in found.kvs}

    async def _write_known(
        self, name: str, known: KeyValue | None, record: QuarantineRecord
    ) -> None:
        """Store what is known to be dead; a record that another prune stored at the same time is equally valid."""
        value = encode_quarantine(record)
        if (known.value if known is not None else None) == (value if record.spans else None):
            return
        key = known.key if known is not None else self._prefix + name.encode()
        operation: Operation = Put(key, value) if record.spans else Delete(key)
        compare = Compare.mod_revision(key, known.mod_revision if known is not None else 0)
        await self._etcd.txn((compare,), (operation,))


def _is_of_later_release(known: KeyValue | None) -> bool:
    """Report whether a log's stored record must stay as it is."""
    try:
        if known is not None:
            decode_quarantine(known.value)
    except LaterFormatError:
        return True
    return False


def _tell(outcome: PruneOutcome, needs: LogNeeds) -> None:
    """Log the removed fragments, and the reason why they could be removed."""
    plan = outcome.plan
    _log.info(
        "recovery_log.pruned",
        log=plan.log,
        shards=plan.shards,
        fragments=outcome.removed.fragments,
        bytes=outcome.removed.bytes,
        failed=outcome.failed.fragments,
        failure=outcome.failure,
        needed=[(begin, None if end == ENDLESS else end) for begin, end in needs.intervals],
        first=plan.dead[0].begin,
        last=plan.dead[-1].end,
    )
