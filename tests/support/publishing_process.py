"""A process that publishes a message and its acknowledgement for each key that it reads.

Run as `python -m tests.support.publishing_process BROKER JOURNAL`: none of its calls are those of the process
under test.
"""

from __future__ import annotations

import sys

from broadsheet.journals.message.uuid import Flags
from tests.support.journal_writers import JournalWriter


def _publish(broker: str, journal: str) -> None:
    writer = JournalWriter(broker, journal)
    for number, line in enumerate(sys.stdin):
        message = writer.line(Flags.CONTINUE_TXN, key=line.strip(), n=number)
        writer.append(message + writer.line(Flags.ACK_TXN))


if __name__ == "__main__":
    _publish(*sys.argv[1:])
