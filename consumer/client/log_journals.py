"""Recovery logs of shards that are applied: the journals that no broker has yet are created with them.

A log is declared by its shard: `recovery_log_prefix` and the shard's id are its name, and its content type is always
the same. The rest of its spec is taken from a journal that the operator declared:

    another log below the prefix        the same spec
    else the shard's first source       replication, fragment stores, compression and intervals; no retention, because
                                        a log is pruned by what its hints need, not by age
    else                                replication 1, no fragment store
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from broadsheet.consumer.client.referenced_journals import bare_name, look_up
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.journals.client import JournalClient
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import (
    ApplyRequest as JournalApplyRequest,
    CompressionCodec,
    JournalSpec,
    Label,
    LabelSelector,
    LabelSet,
)
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, NAME, label_set
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

FRAGMENT_BYTES = 64 << 20
REFRESH_SECONDS = 60


async def missing_log_journals(
    changes: Sequence[ApplyRequest.Change], journals: JournalClient
) -> tuple[JournalSpec, ...]:
    """Return the specs of recovery logs that upserted shards name and that are not there, in the order of the changes.

    Raises:
        EndpointError: no broker could be reached.
    """
    specs = [change.upsert for change in changes if change.HasField("upsert")]
    logs = {log: spec for spec in specs if (log := recovery_log_of(spec))}
    if not logs:
        return ()
    there = await look_up(logs, journals)
    missing = {log: spec for log, spec in logs.items() if log not in there}
    if not missing:
        return ()
    sources = await look_up(
        dict.fromkeys(source for spec in missing.values() if (source := _first_source(spec))),
        journals,
    )
    prefixes = dict.fromkeys(spec.recovery_log_prefix for spec in missing.values())
    siblings = {prefix: await _log_below(prefix, journals) for prefix in prefixes}
    return tuple(
        log_spec(log, siblings[spec.recovery_log_prefix], sources.get(_first_source(spec)))
        for log, spec in missing.items()
    )


async def create_log_journals(logs: Iterable[JournalSpec], journals: JournalClient) -> None:
    """Create journals of logs; one that somebody created in the meantime is left as it is.

    Raises:
        ServiceError: a broker refused one, or could not be reached. Those before it are created.
    """
    for spec in logs:
        change = JournalApplyRequest.Change(upsert=spec, expect_mod_revision=0)
        try:
            await journals.apply([change])
        except ApplyConflictError:
            continue


def log_spec(log: str, sibling: JournalSpec | None, source: JournalSpec | None) -> JournalSpec:
    """Return the spec of a log.

    Args:
        log: Its name.
        sibling: Another log below the same prefix, if there is one.
        source: The first source of its shard, if that is there.
    """
    if sibling is not None:
        spec = JournalSpec()
        spec.CopyFrom(sibling)
        spec.ClearField("suspend")
        spec.name = log
        return spec
    fragment = JournalSpec.Fragment(
        length=FRAGMENT_BYTES,
        compression_codec=CompressionCodec.NONE,
        refresh_interval=Duration(seconds=REFRESH_SECONDS),
    )
    if source is not None:
        fragment.CopyFrom(source.fragment)
        fragment.ClearField("retention")
        # A template names labels of the source, which a log has not.
        fragment.ClearField("path_postfix_template")
    return JournalSpec(
        name=log,
        replication=1 if source is None else source.replication,
        labels=label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG)),
        fragment=fragment,
    )


def _first_source(spec: ShardSpec) -> str:
    return bare_name(spec.sources[0].journal) if spec.sources else ""


async def _log_below(prefix: str, journals: JournalClient) -> JournalSpec | None:
    labels = [
        Label(name=CONTENT_TYPE, value=CONTENT_TYPE_RECOVERY_LOG),
        Label(name=NAME, value=f"{prefix}/", prefix=True),
    ]
    listing = await journals.list(LabelSelector(include=LabelSet(labels=labels)))
    return min((each.spec for each in listing.journals), key=_name, default=None)


def _name(spec: JournalSpec) -> str:
    return spec.name
