"""What errors of Kafka's client mean for a shard."""

# ruff: noqa: SLF001 - the client names errors of its own, not of a broker, with an underscore

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from consumer.errors import SourceDataLossError, SourceError, SourceUnavailableError

_GONE: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_PASSING: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError._RESOLVE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # Brokers say so of a topic that was made a moment ago.
}
_MENDS_ITSELF: Final = {KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
"""Met while there are other brokers, or a reconnection, to go on with."""


def told_apart(source: str, error: KafkaError) -> SourceError:
    """Return what an error means.

    Args:
        source: The topic, or the name of a partition's messages.
        error: Of the client, or of a broker.
    """
    if error.code() in _GONE:
        return SourceDataLossError(
            source,
            f"the message that follows the checkpoint is gone ({error.str()}): its topic keeps messages for too"
            " short a time, or was made anew",
        )
    if error.code() in _PASSING or error.retriable():
        return SourceUnavailableError(source, error.str())
    return SourceError(source, error.str())


def mends_itself(error: KafkaError) -> bool:
    """Tell whether the client goes on by itself after an error that it only reports."""
    return error.code() in _MENDS_ITSELF


def is_end_of_partition(error: KafkaError) -> bool:
    """Tell whether this is no error, but says that a partition was read to its present end."""
    return error.code() == KafkaError._PARTITION_EOF
