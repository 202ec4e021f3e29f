"""Every decoder of bytes that were stored or sent by somebody else. A new one is a line here.

Other packages of tests add theirs by a list of `FuzzedDecoder`s in `_PARTS`.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.messages import MESSAGE_DECODERS

DECODERS: Final[tuple[FuzzedDecoder, ...]] = (*MESSAGE_DECODERS,)
