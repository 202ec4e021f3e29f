"""An application for members that the terminal starts: it hangs and fails at messages that say so.

The directory for its states is told by `DIRECTORY_VARIABLE`. While the file `PROCEED` is not there, "hang" hangs, and
"bad" fails.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from tests.support.tally import JsonTally

APPLICATION = "tests.support.unruly:create"
DIRECTORY_VARIABLE = "UNRULY_DIRECTORY"
PROCEED = "proceed"


class Unruly(JsonTally):
    """Counts keys, except those that are made to do harm."""

    def __init__(self, directory: Path) -> None:
        """Keep states in `directory`."""
        super().__init__(directory, output="")
        self._proceed = directory / PROCEED

    def consume_message(
        self, shard: Shard, store: Any, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count the message, or do what its key says."""
        key = envelope.message["key"]
        if key == "bad" and not self._proceed.exists():
            raise ValueError("cannot digest this")
        while key == "hang" and not self._proceed.exists():
            time.sleep(0.01)  # This is what hangs: it polls a file, as a query polls a lock.
        super().consume_message(shard, store, envelope, publisher)


def create() -> Unruly:
    """Make the application of one member."""
    return Unruly(Path(os.environ[DIRECTORY_VARIABLE]))
