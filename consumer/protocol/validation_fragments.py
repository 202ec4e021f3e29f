"""Rules of the requests by which brokers remove fragments.

Each function raises `ValidationError` for the first rule broken, with the path of its field.
"""

from __future__ import annotations

from consumer.protocol.alphabet import require, validate_journal
from consumer.protocol.fragments_pb2 import DeleteFragmentsRequest

FRAGMENTS_DELETED_MAX = 1_000
"""Fragments of one request."""


def validate_delete_fragments_request(request: DeleteFragmentsRequest) -> None:
    """Check a request to remove fragments of a journal.

    Raises:
        ValidationError: its journal is malformed, a fragment is empty, or there are too many.
    """
    validate_journal(request.journal)
    require(
        len(request.fragments) <= FRAGMENTS_DELETED_MAX,
        "fragments",
        f"expected at most {FRAGMENTS_DELETED_MAX}, got {len(request.fragments)}; send several requests",
    )
    for index, fragment in enumerate(request.fragments):
        require(
            0 <= fragment.begin < fragment.end,
            f"fragments[{index}]",
            f"expected 0 <= begin < end, got {fragment.begin} and {fragment.end}",
        )
