"""Every decoder of bytes that were stored or sent by somebody else. A new one is a line here.

Other packages of tests add theirs by a tuple of `FuzzedDecoder`s in `DECODERS`.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.data_roots import DATA_ROOT_DECODER
from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.fragments import FRAGMENT_DECODERS
from tests.fuzz.messages import MESSAGE_DECODERS
from tests.fuzz.spark_reads import SPARK_DECODERS
from tests.fuzz.stored import STORED_DECODERS

DECODERS: Final[tuple[FuzzedDecoder, ...]] = (
    *FRAGMENT_DECODERS,
    *MESSAGE_DECODERS,
    *STORED_DECODERS,
    DATA_ROOT_DECODER,
    *SPARK_DECODERS,
)
