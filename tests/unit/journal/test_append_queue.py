"""Which appends go out together, and how content is cut into messages."""

from __future__ import annotations

from concurrent.futures import Future

from hypothesis import given, strategies as st

from broadsheet.journals.append_queue import GROUP_BYTES_MAX, AppendQueue
from broadsheet.journals.appender import chunks_of
from broadsheet.journals.transport import CHUNK_BYTES
from broadsheet.wire.journal_pb2 import AppendRequest
from broadsheet.wire.labels import label_set, parse_selector

PLAIN = AppendRequest(journal="abcd")


def test_appends_that_wait_for_nothing_new_go_out_together() -> None:
    """Grouping is where throughput comes from."""
    queue = AppendQueue()
    dependency: Future[object] = Future()

    first = queue.put(PLAIN, [b"a"], 1, {dependency})
    second = queue.put(PLAIN, [b"b"], 1, set())
    third = queue.put(PLAIN, [b"c"], 1, {dependency})

    assert first is second is third
    assert [group.content for group in queue.groups] == [[b"a", b"b", b"c"]]


def test_append_with_a_new_dependency_starts_a_group() -> None:
    """Merged backwards, it would hold up what need not wait, or wait for itself."""
    queue = AppendQueue()

    first = queue.put(PLAIN, [b"a"], 1, set())
    second = queue.put(PLAIN, [b"b"], 1, {Future()})

    assert first is not second
    assert queue.newest() is second


def test_append_with_other_registers_starts_a_group() -> None:
    """Each append's own check must hold for its own bytes."""
    queue = AppendQueue()
    checked = AppendRequest(journal="abcd", check_registers=parse_selector("author=me"))
    changing = AppendRequest(journal="abcd", union_registers=label_set(("author", "me")))

    futures = {queue.put(request, [b"a"], 1, set()) for request in (PLAIN, checked, changing)}

    assert len(futures) == 3


def test_group_under_way_or_full_takes_no_more() -> None:
    """What is being sent cannot grow, and no group grows without end."""
    queue = AppendQueue()
    first = queue.put(PLAIN, [], GROUP_BYTES_MAX, set())
    second = queue.put(PLAIN, [], 1, set())
    third = queue.put(PLAIN, [], 1, set())
    queue.groups[-1].under_way = True
    fourth = queue.put(PLAIN, [], 1, set())

    assert first is second
    assert third is not second
    assert fourth is not third


def test_future_of_a_group_cannot_be_cancelled() -> None:
    """It is shared: one caller's cancellation must not take the others' result."""
    assert not AppendQueue().put(PLAIN, [b"a"], 1, set()).cancel()


@given(
    st.lists(
        st.integers(min_value=0, max_value=3 * CHUNK_BYTES // 2).map(lambda size: b"x" * size)
        | st.binary(max_size=20),
        max_size=6,
    )
)
def test_chunks_hold_all_bytes_in_order_within_bounds(pieces: list[bytes]) -> None:
    """None is empty, for an empty message commits; none is too large for a broker."""
    chunks = [b"".join(chunk) for chunk in chunks_of(pieces)]

    assert b"".join(chunks) == b"".join(pieces)
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
