"""Keeps late copies of an append out of a journal, by a register that every copy demands.

An append whose answer was lost is sent again, and the first copy may still arrive at any later time. Of messages that
does no harm, for readers know them by their UUIDs. But an acknowledgement that arrives late, behind messages of the
same producer, rolls those back; and when they are committed, nobody sees them. So where a copy is in doubt, the next
one shuts the door behind itself:

    first copy      demands the register as it was last seen    ── answered: nothing has changed
    in doubt        the next demands the same, and changes it   ── answered: whatever is still on its way is refused
    refused         the register is what we change it to        ── a copy has landed, and no other will
                    it is something else, and nothing in doubt  ── seen now, and demanded from the next copy on
                    it is something else, and a copy in doubt   ── nobody can tell whether ours has landed

While answers arrive, registers are neither set nor replicated. Each writer has a register of its own; two at a time
that share one, as two processes that both believe to be a shard's primary, fail each other's doubtful appends at worst.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

from broadsheet.consumer.protocol.journal_pb2 import LabelSelector, LabelSet
from broadsheet.consumer.protocol.labels import label_set, selector, value_of

PREFIX: Final = "broadsheet.dev/copies-"
NAME_BYTES: Final = 6
VALUE_BYTES: Final = 6
"""Values are never used twice: a copy that demands an old one is refused for ever."""


class RefusalMeaning(Enum):
    """What it means that a copy was refused for the register."""

    LANDED = "landed"
    """Another copy of the same append is in the journal."""
    AGAIN = "again"
    """Nothing of it is; the next copy demands what there is."""
    UNKNOWN = "unknown"
    """Somebody else changed the register while a copy was in doubt."""


@dataclass(frozen=True, slots=True)
class WriterEpochRegister:
    """A writer's register, of the same name in every journal."""

    name: str
    random_bytes: Callable[[int], bytes]

    @classmethod
    def of(cls, writer: str, random_bytes: Callable[[int], bytes]) -> WriterEpochRegister:
        """Return the register of a writer.

        Args:
            writer: Names it among all that append to the same journals. Who takes over from it has the same name, so
                that there are no more registers than writers.
            random_bytes: Source of values.
        """
        digest = blake2b(writer.encode(), digest_size=NAME_BYTES).hexdigest()
        return cls(PREFIX + digest, random_bytes)


class DuplicateFence:
    """A writer's register in one journal, as it knows it. One append at a time."""

    def __init__(self, register: WriterEpochRegister) -> None:
        """Suppose that it was never set."""
        self._register = register
        self._seen = ""
        self._next = ""
        """What the next copy changes it to; empty: no copy is in doubt."""

    @property
    def demanded(self) -> LabelSelector:
        """What each copy demands of the registers."""
        label = label_set((self._register.name, self._seen))
        # No value of its own stands for any.
        return selector(include=label) if self._seen else selector(exclude=label)

    @property
    def change(self) -> LabelSet | None:
        """What each copy sets."""
        return label_set((self._register.name, self._next)) if self._next else None

    def on_doubt(self) -> None:
        """The answer to a copy was lost."""
        self._next = self._next or self._register.random_bytes(VALUE_BYTES).hex()

    def on_landed(self) -> None:
        """A copy was answered; the next append begins without doubt."""
        if self._next:
            self._seen, self._next = self._next, ""

    def on_refused(self, registers: LabelSet) -> RefusalMeaning:
        """A copy was refused, for `registers` are not as it demanded."""
        found = value_of(registers, self._register.name)
        if self._next and found == self._next:
            self.on_landed()
            return RefusalMeaning.LANDED
        if self._next:
            return RefusalMeaning.UNKNOWN
        self._seen = found
        return RefusalMeaning.AGAIN
