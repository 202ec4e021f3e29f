"""Ready applications that carry journals, or topics, out into other systems: no code is written.

    shardctl serve broadsheet.consumer.relay:Relay
    shardctl sink kafka orders/part-000 --topic orders --set bootstrap.servers=broker:9092

Each shard's labels say where its messages go (`broadsheet.consumer.relay.sink_labels`).
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.relay.application import Relay as Relay
    from broadsheet.consumer.relay.sink_labels import (
        Sink as Sink,
        SinkKind as SinkKind,
        labels_of_sink as labels_of_sink,
    )
    from broadsheet.consumer.relay.topic_relay import TopicRelay as TopicRelay

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
