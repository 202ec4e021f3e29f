"""Decoders of messages in journals."""

from __future__ import annotations

from typing import Final

from consumer.message.arrow_type import ArrowType
from tests.fuzz.arrow_seeds import arrow_messages, look_at_all
from tests.fuzz.decoder import FuzzedDecoder


def _arrow(data: bytes) -> None:
    message = ArrowType().decode(data)
    if message.rows is not None:
        look_at_all(message.rows)


MESSAGE_DECODERS: Final = (FuzzedDecoder("message.arrow", arrow_messages, _arrow, (ValueError,)),)
