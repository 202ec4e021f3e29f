"""The progress of a playback as operators see it: what is done, what is left, and how long that takes."""

from __future__ import annotations

from broadsheet.consumer.recoverylog.playback import PlaybackProgress, PlayingTime
from broadsheet.consumer.shard.replica_progress import playback_progress
from broadsheet.wire.progress_pb2 import ProgressKind, ProgressUnit


def test_playback_progress_tells_the_rest_at_the_smoothed_rate() -> None:
    """4,000 of 10,000 bytes in two seconds: three more. The same message is for splits, merges and drains."""
    playback = PlaybackProgress()
    playback.on_played(4_000, 6_000, played_bytes=4_000, time=PlayingTime(0.0, 2.0))

    told = playback_progress("shard-1", playback)

    assert (told.kind, told.unit) == (
        ProgressKind.PROGRESS_KIND_PLAYBACK,
        ProgressUnit.PROGRESS_UNIT_BYTES,
    )
    assert (told.subject, told.phase) == ("shard-1", "playing")
    assert (told.done, told.to_do, told.rate, told.eta_s) == (4_000, 6_000, 2_000.0, 3.0)


def test_playback_progress_before_anything_is_played_has_no_time() -> None:
    """Unknown is told as that, and not as nothing to do; at the head nothing is left, whatever the rate."""
    begun = playback_progress("shard-1", PlaybackProgress(behind_bytes=10))
    there = playback_progress("shard-1", PlaybackProgress(offset=10, tailing=True))

    assert (begun.to_do, begun.eta_s) == (10, -1.0)
    assert (there.phase, there.to_do, there.eta_s) == ("following", 0, 0.0)
