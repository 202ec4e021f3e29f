"""Signals to the forked children of a server are not signals to the server."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.eventually import DEADLINE_SECONDS

_PROGRAM = """
import asyncio, multiprocessing, os, signal, sys, threading
from broadsheet.runtime.event_loop import run
from broadsheet.consumer.member.service import STOP_SIGNALS, stop_on_signals

class Target:
    def __init__(self): self.asked = []
    def stop(self): self.asked.append("stop")
    def force_stop(self): self.asked.append("force_stop")

def work(began):
    began.set()
    threading.Event().wait()

def child_of_pool(number):
    context = multiprocessing.get_context("fork")
    began = context.Event()
    child = context.Process(target=work, args=(began,))
    child.start()
    assert began.wait(20)
    # Python 3.13.0 has a child that was forked on a thread handle a signal only where it interrupts a call, so one that
    # comes before the child waits may be lost.
    while child.exitcode is None:
        os.kill(child.pid, number)
        child.join(1)
    return child.exitcode

async def main():
    target = Target()
    number = getattr(signal, sys.argv[1])
    with stop_on_signals(target, STOP_SIGNALS):
        # On a thread, as shards run; and then on the loop's own.
        codes = [await asyncio.to_thread(child_of_pool, number), child_of_pool(number)]
        await asyncio.sleep(0)
        told_of_children = list(target.asked)
        os.kill(os.getpid(), signal.SIGTERM)
        while not target.asked:
            await asyncio.sleep(0.01)
    print(codes, told_of_children, target.asked)

run(main())
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)]
)
def test_signal_to_a_forked_worker_ends_the_worker_alone(number: signal.Signals, code: int) -> None:
    """`Pool.terminate` sends SIGTERM to its workers: the member whose application has the pool must not leave."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, number.name],
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )

    assert done.stdout.splitlines()[-1] == f"{[int(code)] * 2} [] ['stop']"
