"""The owner of a recovery log: the one shard, of one root, that may record there.

A recorder writes it into the log as a property, which hints repeat. To Gazette's players it is one more small file. A
log without it was recorded by Gazette, or by an older release, and belongs to the shard that takes it over next.

An owner that took the log from another one is recorded at a path of its own, and the last one counts. Gazette's players
refuse a property that changes, and pass over all operations behind it:

    /.recovery-log.owner        the first owner
    /.recovery-log.owner.1      the next one

Two shards may name one log: a spec copied to another root with the same broker, or the ids `a/bbbb` below `logs` and
`bbbb` below `logs/a`. Each would undo what the other recorded. A stranger is refused by name, before it takes the
fence.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from broadsheet.consumer.errors import ForeignLogError
from broadsheet.runtime.formats import Format
from broadsheet.wire.labels import RECOVERY_LOG_OF, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

OWNER: Final = Format(
    "the record of a log's owner", "let a member of that release recover the shard"
)
OWNER_PATH: Final = "/.recovery-log.owner"
"""The property that names the first owner. It is not below any store's own paths."""
_OWNER: Final = re.compile(rf"{re.escape(OWNER_PATH)}(?:\.([1-9]\d{{0,8}}))?")


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
    return OWNER.decode_json(content, LogOwner)


def is_owner_path(path: str) -> bool:
    """Tell whether a property names an owner, present or former."""
    return _OWNER.fullmatch(path) is not None


def owner_record(properties: Mapping[str, str], claim: LogClaim) -> tuple[str, str] | None:
    """Return path and content of the property to record in a log that the claim allows; None if it names the owner.

    Raises:
        ValueError: the present record cannot be read.
    """
    number = _newest(properties)
    if number is None:
        return OWNER_PATH, encode_owner(claim.owner)
    if decode_owner(properties[_path(number)]) == claim.owner:
        return None
    return _path(number + 1), encode_owner(claim.owner)


def _newest(properties: Mapping[str, str]) -> int | None:
    """Return the number of the last owner that was recorded, from 0; None if there is none."""
    found = filter(None, map(_OWNER.fullmatch, properties))
    return max((int(match[1] or 0) for match in found), default=None)


def _path(number: int) -> str:
    return f"{OWNER_PATH}.{number}" if number else OWNER_PATH


def check_claim(log: str, properties: Mapping[str, str], claim: LogClaim) -> None:
    """Check that a log is of the shard that claims it.

    Args:
        log: Named by the error.
        properties: Of the log, as far as it was played, or of its hints.
        claim: Of the shard.

    Raises:
        ForeignLogError: it belongs to another shard, or the record cannot be read.
    """
    number = _newest(properties)
    if number is None:
        return
    path = _path(number)
    try:
        owner = decode_owner(properties[path])
    except ValueError as error:
        raise ForeignLogError(
            log, f"its record of the owner, {path}, cannot be read: {error}"
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
