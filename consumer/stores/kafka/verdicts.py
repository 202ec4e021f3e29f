"""Decision of what follows an error of Kafka's client in a transaction."""

from __future__ import annotations

from enum import Enum
from typing import Final

from confluent_kafka import KafkaError

# ruff: noqa: SLF001 - the client names errors of its own, not of a broker, with an underscore


class TxnVerdict(Enum):
    """The next step after an error."""

    AGAIN = "call the same function again"
    REPEAT = "abort the transaction, then send all of it again"
    FENCED = "end: a newer producer has the transactional id, or the transaction timed out"
    REFUSED = "end: it will be refused again"


_FENCES: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    # Of `produce` after a fatal error, which only a fence or a time-out causes while calls are in order.
    KafkaError._FATAL,
}
_PASSING: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


def verdict_of(error: KafkaError, *, is_committing: bool = True) -> TxnVerdict:
    """Return what follows an error of a call within a transaction.

    Args:
        error: Of the call.
        is_committing: The transaction may have been committed, so it must not be sent again.
    """
    if error.code() in _FENCES:
        return TxnVerdict.FENCED
    if error.code() == KafkaError._STATE and not is_committing:
        # `produce` says no more when the client has met an error in the background: the abort tells a fence from what
        # passes, such as a transaction that a broker ended while this process was paused.
        return TxnVerdict.REPEAT
    if error.fatal():
        return TxnVerdict.REFUSED
    if error.txn_requires_abort():
        return TxnVerdict.REPEAT
    if error.retriable() or error.code() == KafkaError._TIMED_OUT:
        return TxnVerdict.AGAIN
    return TxnVerdict.REFUSED


def is_passing(error: KafkaError) -> bool:
    """Tell whether brokers, and not the request, are the cause, so that trying later helps."""
    return error.code() in _PASSING or error.retriable()


def is_undecided(error: KafkaError) -> bool:
    """Tell whether the client was met on its way from one state to another, as when it is fenced in a commit.

    What the brokers have is not known then: a new client, by the next attempt, reads it from the marker.
    """
    return error.code() == KafkaError._STATE


def is_refused_connection(error: KafkaError) -> bool:
    """Tell whether names, certificates or passwords are the cause, which a call's own error does not say."""
    return error.code() in (KafkaError._AUTHENTICATION, KafkaError._RESOLVE, KafkaError._SSL)
