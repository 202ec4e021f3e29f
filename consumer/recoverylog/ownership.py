"""The owner of a recovery log: the one shard, of one root, that may record there.

A recorder writes it into the log as a property, which hints repeat. To Gazette's players it is one more small file. A
log without it was recorded by Gazette, or by an older release, and belongs to the shard that takes it over next.

Two shards may name one log: a spec copied to another root with the same broker, or the ids `a/bbbb` below `logs` and
`bbbb` below `logs/a`. Each would undo what the other recorded. A stranger is refused by name, before it takes the
fence.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from broadsheet.allocator.documents import decode_json
from broadsheet.consumer.errors import ForeignLogError
from broadsheet.consumer.protocol.labels import RECOVERY_LOG_OF, value_of
from broadsheet.consumer.protocol.shard_pb2 import ShardSpec

OWNER_PATH: Final = "/.recovery-log.owner"
"""The property that names the owner. It is not below any store's own paths."""


class LogOwner(msgspec.Struct, frozen=True):
    """The identity of a shard among all that share a broker."""

    root: str
    """The key space of its cluster, e.g. /broadsheet/app."""
    shard: str
    """Its id."""

    def __str__(self) -> str:
        return f"shard {self.shard} of root {self.root}"


@dataclass(frozen=True, slots=True)
class LogClaim:
    """The claim of a shard to a log."""

    owner: LogOwner
    former: LogOwner | None = None
    """The owner from whom the spec says that the log was taken: a root or an id was renamed."""


def claim_of(root: str, spec: ShardSpec) -> LogClaim:
    """Return the claim of a shard to the log that its spec names.

    Args:
        root: Of its cluster.
        spec: Valid; the label `RECOVERY_LOG_OF` names a former owner.
    """
    former = value_of(spec.labels, RECOVERY_LOG_OF)
    return LogClaim(LogOwner(root, spec.id), former_owner(former, spec.id) if former else None)


def former_owner(value: str, shard_id: str) -> LogOwner:
    """Return the owner that a label names: `/root`, or `/root=id` if the id was another one."""
    root, _, former_id = value.partition("=")
    return LogOwner(root, former_id or shard_id)


def encode_owner(owner: LogOwner) -> str:
    """Return the content of the property."""
    return msgspec.json.encode(owner).decode()


def decode_owner(content: str) -> LogOwner:
    """Decode the property.

    Raises:
        ValueError: it is no record of an owner.
    """
    return decode_json(content, LogOwner)


def needs_record(properties: Mapping[str, str], claim: LogClaim) -> bool:
    """Tell whether a log that the claim allows to be recorded into does not name the owner yet."""
    return properties.get(OWNER_PATH) != encode_owner(claim.owner)


def check_claim(log: str, properties: Mapping[str, str], claim: LogClaim) -> None:
    """Check that a log is of the shard that claims it.

    Args:
        log: Named by the error.
        properties: Of the log, as far as it was played, or of its hints.
        claim: Of the shard.

    Raises:
        ForeignLogError: it belongs to another shard, or the record cannot be read.
    """
    content = properties.get(OWNER_PATH)
    if content is None:
        return
    try:
        owner = decode_owner(content)
    except ValueError as error:
        raise ForeignLogError(
            log, f"its record of the owner, {OWNER_PATH}, cannot be read: {error}"
        ) from error
    if owner in (claim.owner, claim.former):
        return
    raise ForeignLogError(
        log,
        f"it belongs to {owner}, and this is {claim.owner}: give the shard another recovery_log_prefix. If the shard "
        "was renamed, and the other is gone for good, set its label "
        f"{RECOVERY_LOG_OF} to {_label_value(owner, claim)}",
    )


def _label_value(owner: LogOwner, claim: LogClaim) -> str:
    return owner.root if owner.shard == claim.owner.shard else f"{owner.root}={owner.shard}"
