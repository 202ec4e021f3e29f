"""What can only go wrong with journals as a source."""

from __future__ import annotations

from spark_bridge.errors import SparkBridgeError


class JournalReplacedError(SparkBridgeError):
    """A journal does not hold what a query has read of it."""

    def __init__(
        self, journal: str, offset: int, write_head: int, read_epoch: str, present_epoch: str
    ) -> None:
        super().__init__(
            f"journal {journal} does not hold what was read of it: it was read up to offset {offset} in epoch "
            f"{read_epoch}; its write head is {write_head} now, in epoch {present_epoch}. It was deleted and applied "
            "again, or has lost its end. Restore it, or set the option failOnDataLoss to false to read all that is "
            "there now"
        )
        self.journal = journal
        self.offset = offset
        self.write_head = write_head
        self._epochs = (read_epoch, present_epoch)

    def __reduce__(self) -> tuple[type[JournalReplacedError], tuple[str, int, int, str, str]]:
        return type(self), (self.journal, self.offset, self.write_head, *self._epochs)


class JournalBytesGoneError(SparkBridgeError):
    """Bytes that a read had still to see are not in their journal any more."""

    def __init__(self, journal: str, begin: int, end: int) -> None:
        super().__init__(
            f"journal {journal}: bytes [{begin}, {end}) are gone before they were read: its retention is shorter than "
            "the query was away, or it was made anew. To go on without them, set the option failOnDataLoss to false"
        )
        self.journal = journal
        self.begin = begin
        """First byte that is gone."""
        self.end = end
        """First byte after it that is there."""

    def __reduce__(self) -> tuple[type[JournalBytesGoneError], tuple[str, int, int]]:
        return type(self), (self.journal, self.begin, self.end)
