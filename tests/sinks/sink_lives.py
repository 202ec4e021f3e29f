"""Lives of a sink, each a process that ends at a place in a transaction, until as many as asked were killed.

    python -m tests.sinks.sink_lives SUBJECT JSON

A subject is a module with `PLACES`, `open_store(config, shard, die)`, `publish(store, number)`, and perhaps
`tidy(config)`, which is called now and then between lives, as an operator's job is, and `answers(config)`, which tells
whether the other system is there: only while it is does a commit have to end in time. Lives are forked, because a start
of Python for each of a thousand takes longer than their work. The last line of the output is a report, as JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from broadsheet.consumer.errors import CommitFencedError, StoreUnavailableError
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.shard_pb2 import Checkpoint

TIMED = "timed"
"""A place anywhere in a commit."""
ZOMBIE = "zombie"
"""A place at which the process is stopped, and goes on once its successor has restored."""
RUN_LENGTH_MAX = 23
_FENCED, _UNAVAILABLE = 3, 4
_TIDIED_LIVES = 10
_LAST_TRANSACTIONS = 3
"""What a life sends that is not killed."""
_LIFE_SECONDS_MAX = 1_800.0
"""With several outages of the other system, each of which takes minutes on a busy machine."""
_COMMIT_SECONDS_MAX = 120.0
"""While the other system answers."""
_LOOK_SECONDS = 5.0


def checkpoint_at(number: int) -> Checkpoint:
    """Return the checkpoint after so many records; some are too long for a marker."""
    checkpoint = Checkpoint()
    checkpoint.sources["in"].read_through = number
    if number % 5 == 0:
        checkpoint.sources["in"].resume = random.Random(number).randbytes(4_000)
    return checkpoint


def number_of(checkpoint: Checkpoint) -> int:
    """Return how many records a checkpoint has; 0 if it is the first."""
    return checkpoint.sources["in"].read_through if checkpoint.sources else 0


def run_length(number: int) -> int:
    """Return how many records the transaction that begins at a number has: the same in every life."""
    return 1 + number * 7919 % RUN_LENGTH_MAX


class Death:
    """Ends this process at a place of one of its transactions."""

    def __init__(self, place: str, transaction: int) -> None:
        self.place = place
        self._left = transaction

    def begin(self) -> None:
        """Count a transaction."""
        self._left -= 1

    def at(self, place: str) -> None:
        """Die, or stop, if this is the place."""
        # A transaction of one record has no half: then the next one that has.
        if self._left > 0:
            return
        if self.place == TIMED and place == "before":
            # No handler: the signal ends the process, wherever it is by then.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.1))
        if place != self.place.removeprefix(f"{ZOMBIE}-"):
            return
        os.kill(os.getpid(), signal.SIGSTOP if self.place.startswith(ZOMBIE) else signal.SIGKILL)


def settled(subject: Any, config: dict[str, Any], future: Future[Any]) -> None:
    """Wait for what a store has begun; `Any`: a module.

    Raises:
        TimeoutError: it did not end, though the other system answered.
    """
    answers = getattr(subject, "answers", lambda _: True)
    left = _COMMIT_SECONDS_MAX
    while left > 0:
        try:
            future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                raise
        else:
            return
        left -= _LOOK_SECONDS if answers(config) else 0
    raise TimeoutError(f"a commit took more than {_COMMIT_SECONDS_MAX} s")


def live(subject: Any, config: dict[str, Any], death: Death) -> int:
    """Restore, and send until it ends, or as far as asked; `Any`: a module."""
    shard = FixedShard(id="sink", root=config["root"])
    store = subject.open_store(config, shard, death.at)
    number = number_of(store.restore_checkpoint(shard))
    last = number + _LAST_TRANSACTIONS * RUN_LENGTH_MAX if death.place == "none" else sys.maxsize
    while number < last:
        death.begin()
        end = number + run_length(number)
        for each in range(number, end):
            subject.publish(store, each)
        death.at("before")
        settled(subject, config, store.start_commit(shard, checkpoint_at(end), ()))
        death.at("after")
        number = end
    store.destroy()
    return number


def forked(run: Callable[[], int | None], sent: int) -> int:
    """Run in a child, which writes a number that it returns to a descriptor, and whose exit says how it ended."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        number = run()
        if number is not None:
            os.write(sent, f"{number}\n".encode())
        status = 0
    except CommitFencedError:
        status = _FENCED
    except StoreUnavailableError:
        status = _UNAVAILABLE
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(child: int, *, stops: bool = False) -> int | None:
    """Wait for a child; return its exit code, negative for a signal; None if it stopped."""
    deadline = time.monotonic() + _LIFE_SECONDS_MAX
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG | (os.WUNTRACED if stops else 0))
        if found:
            return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    raise TimeoutError(f"a life of the sink took more than {_LIFE_SECONDS_MAX} s")


def end_all(children: Sequence[int]) -> None:
    """Kill children that are stopped."""
    for child in children:
        os.kill(child, signal.SIGKILL)


def in_turn(places: Sequence[str], chooser: random.Random) -> Iterator[str]:
    """Yield all places in some order, then all again in another one: each as often as the others."""
    while True:
        yield from chooser.sample(places, len(places))


def main() -> None:
    """Run lives until as many as asked were killed; one more ends by itself, and says how many records are out."""
    subject, config = import_module(sys.argv[1]), json.loads(sys.argv[2])
    chooser = random.Random(config["seed"])
    places = in_turn(config.get("places", subject.PLACES), chooser)
    report: Counter[str] = Counter()
    zombies: list[int] = []
    # Stopped, they would outlive a run that fails, and keep its output open, for which its caller waits.
    atexit.register(end_all, zombies)
    sent, child_sent = os.pipe()
    while True:
        place = next(places) if report["kills"] < config["kills"] else "none"
        death = Death(place, chooser.randint(1, 3))
        child = forked(lambda death=death: live(subject, config, death), child_sent)  # type: ignore[misc]  # mypy infers no default
        code = ended(child, stops=True)
        report["lives"] += 1
        if hasattr(subject, "tidy") and report["lives"] % _TIDIED_LIVES == 0:
            # In a child, because what it starts must not be forked into lives.
            job = forked(lambda: subject.tidy(config), child_sent)
            assert ended(job) == 0, "the job between lives failed"
            report["tidied"] += 1
        # One that was stopped is no kill: it is fenced later, and ends by itself.
        report["kills"] += code in (-signal.SIGKILL, -signal.SIGALRM)
        if code is None:
            zombies.append(child)
            continue
        report[
            {
                0: "done",
                -9: place,
                -signal.SIGALRM: place,
                _FENCED: "fenced",
                _UNAVAILABLE: "unavailable",
            }[code]
        ] += 1
        while zombies:
            zombie = zombies.pop()
            os.kill(zombie, signal.SIGCONT)
            outcome = ended(zombie)
            assert outcome in (_FENCED, _UNAVAILABLE), f"a zombie ended with {outcome}"
            report["zombies"] += 1
        if code == 0:
            report["records"] = int(os.read(sent, 100))
            break
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
