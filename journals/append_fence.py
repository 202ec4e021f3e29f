"""Fence against late copies of an append: a register that every copy demands.

An append whose answer was lost is sent again, and the first copy may still arrive at any later time. A late copy of
messages is harmless, because readers recognise them by their UUIDs. But an acknowledgement that arrives late, after
further messages of the same producer, rolls those back; when they are committed later, no reader sees them. So when the
outcome of a copy is in doubt, the next copy fences it off:

    first copy      demands the register as it was last seen    ── answered: nothing has changed
    in doubt        the next demands the same, and changes it   ── answered: whatever is still on its way is refused
    refused         the register is what we change it to        ── a copy has landed, and no other will
                    it is something else, and nothing in doubt  ── seen now, and demanded from the next copy on
                    it is something else, and a copy in doubt   ── unknown whether ours has landed

While answers arrive, registers are neither set nor replicated. Each writer has a separate register. If two writers
share one, as two processes that both believe to be a shard's primary, at worst they make each other's doubtful appends
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

from broadsheet.wire.journal_pb2 import LabelSelector, LabelSet
from broadsheet.wire.labels import label_set, selector, value_of

PREFIX: Final = "broadsheet.dev/copies-"
NAME_BYTES: Final = 6
VALUE_BYTES: Final = 6
"""Length of a value. Values are never reused, so a copy that demands an old one is refused forever."""


class RefusalMeaning(Enum):
    """Meaning of a copy's refusal because of the register."""

    LANDED = "landed"
    """Another copy of the same append is in the journal."""
    AGAIN = "again"
    """Nothing of the append is in the journal; the next copy demands the register as found."""
    UNKNOWN = "unknown"
    """Another writer changed the register while a copy was in doubt."""


@dataclass(frozen=True, slots=True)
class WriterEpochRegister:
    """A writer's register, of the same name in every journal."""

    name: str
    random_bytes: Callable[[int], bytes]

    @classmethod
    def of(cls, writer: str, random_bytes: Callable[[int], bytes]) -> WriterEpochRegister:
        """Return the register of a writer.

        Args:
            writer: Names it among all that append to the same journals. Its successor has the same name, so
                that there are no more registers than writers.
            random_bytes: Source of values.
        """
        digest = blake2b(writer.encode(), digest_size=NAME_BYTES).hexdigest()
        return cls(PREFIX + digest, random_bytes)


class DuplicateFence:
    """This process's view of a writer's register in one journal. One append at a time."""

    def __init__(self, register: WriterEpochRegister) -> None:
        self._register = register
        self.seen = ""
        """Value of the register when it was last seen; empty before that."""
        self.next = ""
        """Value to which the next copy changes the register; empty if no copy is in doubt."""

    @property
    def demanded(self) -> LabelSelector:
        """Registers that each copy demands."""
        label = label_set((self._register.name, self.seen))
        # Before the register is first seen, demand that it does not exist.
        return selector(include=label) if self.seen else selector(exclude=label)

    @property
    def change(self) -> LabelSet | None:
        """Registers that each copy sets; None while no copy is in doubt."""
        return label_set((self._register.name, self.next)) if self.next else None

    def on_doubt(self) -> None:
        """Note that the answer to a copy was lost."""
        self.next = self.next or self._register.random_bytes(VALUE_BYTES).hex()

    def on_landed(self) -> None:
        """Note that a copy was answered; the next append begins without doubt."""
        if self.next:
            self.seen, self.next = self.next, ""

    def on_refused(self, registers: LabelSet) -> RefusalMeaning:
        """Interpret the refusal of a copy whose demand `registers` do not meet."""
        found = value_of(registers, self._register.name)
        if self.next and found == self.next:
            self.on_landed()
            return RefusalMeaning.LANDED
        if self.next:
            return RefusalMeaning.UNKNOWN
        self.seen = found
        return RefusalMeaning.AGAIN
