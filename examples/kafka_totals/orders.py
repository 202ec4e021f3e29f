"""Orders of random customers, and whether the topic of totals has what follows from them.

    python -m broadsheet.examples.kafka_totals.orders send --orders 1000
    python -m broadsheet.examples.kafka_totals.orders check

The check is an ordinary consumer that reads committed records. It compares each customer's totals with its orders: each
once, none missing, in order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from broadsheet.examples.kafka_totals.app import ORDERS, SERVERS_DEFAULT, TOTALS

_SECONDS = 30.0


def send(servers: str, count: int, *, customers: int = 20, seed: int | None = None) -> None:
    """Send orders of random customers.

    Raises:
        RuntimeError: Kafka did not take all of them within half a minute.
    """
    chance = random.Random(seed)
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for _ in range(count):
        customer = f"customer-{chance.randrange(customers)}"
        order = {"customer": customer, "cents": chance.randrange(1, 10_000)}
        producer.produce(ORDERS, json.dumps(order).encode(), customer.encode())
        producer.poll(0)
    left = producer.flush(_SECONDS)
    if left:
        raise RuntimeError(f"Kafka did not take {left} of {count} orders within {_SECONDS} s")


def committed(servers: str, topic: str) -> Iterator[dict[str, Any]]:
    """Yield what is committed in a topic now, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"check-{uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, _SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        unread = set(partitions)
        while unread:
            message = consumer.poll(_SECONDS)
            if message is None:
                raise RuntimeError(f"Kafka tells nothing of {topic}/{min(unread)}")
            if message.error() is not None:
                # The end of a partition: nothing else is an event here, because nothing is subscribed.
                unread.discard(message.partition())
            else:
                yield json.loads(message.value() or b"")
    finally:
        consumer.close()


def problems(servers: str) -> list[str]:
    """Return the customers whose totals do not follow from their orders, one a line; none if all is right."""
    orders: dict[str, list[int]] = defaultdict(list)
    for order in committed(servers, ORDERS):
        orders[order["customer"]].append(order["cents"])
    totals: dict[str, list[int]] = defaultdict(list)
    for total in committed(servers, TOTALS):
        totals[total["customer"]].append(total["cents"])
    expected = {customer: list(accumulate(cents)) for customer, cents in orders.items()}
    return [
        f"{customer}: expected {len(expected.get(customer, []))} totals, got {len(totals[customer])},"
        f" the last {totals[customer][-1:]} of {expected.get(customer, [])[-1:]}"
        for customer in sorted(expected.keys() | totals.keys())
        if totals[customer] != expected.get(customer)
    ]


def main() -> None:
    """Send orders, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["send", "check"])
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--servers", default=os.environ.get("KAFKA_SERVERS", SERVERS_DEFAULT))
    options = parser.parse_args()
    if options.do == "send":
        send(options.servers, options.orders)
        return
    found = problems(options.servers)
    if found:
        raise SystemExit("\n".join(found))
    print("every customer's totals follow from its orders: each once, in order")


if __name__ == "__main__":
    main()
