"""librdkafka's mock cluster in a process of its own: one broker, all in memory.

Topics are made when they are first asked for, with four partitions. Transactions leave the offsets of their ends
unused, as those of Kafka do, but the messages of aborted ones are not hidden.
"""

from __future__ import annotations

import signal
import sys

from confluent_kafka import Producer


def main() -> None:
    """Run until terminated; print the address first."""
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    sys.stdout.write(f"serves {broker.host}:{broker.port}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
