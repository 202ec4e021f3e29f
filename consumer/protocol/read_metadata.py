"""What a Read carries beside its messages.

    client → broker   `broadsheet-tail`   "brief": content that goes on in the open fragment, and reaches the write
                                          head, may come without a message that describes the fragment again

Brokers that do not know it describe the fragment before each content; then a tailing reader is woken twice for each
append. Where content comes alone, the fragment ends, and the write head is, where the content ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

TAIL: Final = "broadsheet-tail"
BRIEF: Final = "brief"
BRIEF_TAIL: Final = (TAIL, BRIEF)
"""The metadata of a reader that takes it."""


def takes_brief_tail(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Tell whether a call carries `BRIEF_TAIL`."""
    return BRIEF_TAIL in (metadata or ())
