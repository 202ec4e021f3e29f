"""The loop thread under the blocking clients: every call ends, whatever happens to the thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from broadsheet.consumer.client.loop_thread import LoopThread
from tests.support.eventually import eventually_sync

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """A running thread."""
    with LoopThread(name="under test") as running:
        yield running


def test_close_ends_the_calls_of_other_threads(loop: LoopThread) -> None:
    """A notebook closes the client while another thread still waits for an answer: that thread learns it at once."""
    started = threading.Event()
    cleaned_up = threading.Event()
    outcome: Future[None] = Future()

    async def wait_for_ever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    def call() -> None:
        try:
            loop.call(wait_for_ever())
        except BaseException as error:
            outcome.set_exception(error)

    waiting = threading.Thread(target=call, daemon=True)
    waiting.start()
    assert started.wait(20)

    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        outcome.result(20)
    assert cleaned_up.is_set()


def test_call_after_close_says_so(loop: LoopThread) -> None:
    """Nobody is left to run the coroutine; it is closed, so that nothing warns of it."""
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        loop.call(asyncio.sleep(0))


def test_call_in_a_forked_child_fails_at_once(loop: LoopThread) -> None:
    """A fork copies the object but not its thread: a worker must be told, rather than wait for ever."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            loop.call(asyncio.sleep(0))
            text = "answered"
        except RuntimeError as error:
            text = str(error)
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)

    def child_ended() -> bool:
        return os.waitpid(child, os.WNOHANG)[0] == child

    try:
        eventually_sync(child_ended)
    except AssertionError:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    assert f"opened in process {os.getpid()}" in os.read(read_end, 1_000).decode()
    os.close(read_end)


def test_call_on_the_loop_itself_is_refused(loop: LoopThread) -> None:
    """It would wait for itself."""

    async def nested() -> None:
        loop.call(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="own loop"):
        loop.call(nested())
