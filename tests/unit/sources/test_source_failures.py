"""What errors of other systems' clients mean for a shard: tried for ever, a bounded number of times, or not at all."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from confluent_kafka import KafkaError

from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.sources.kafka import partitions as kafka
from broadsheet.consumer.sources.kinesis.calls import (
    ExpiredIteratorError,
    ThrottledError,
    told_apart,
)


def refused(code: str, status: int = 400) -> ClientError:
    """Return what boto3 raises for an answer."""
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "GetRecords",
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused("ProvisionedThroughputExceededException"), FailureKind.TRANSIENT),
        (refused("InternalFailure", 500), FailureKind.TRANSIENT),
        (refused("SomethingNew", 503), FailureKind.TRANSIENT),
        (EndpointConnectionError(endpoint_url="http://k"), FailureKind.TRANSIENT),
        (ReadTimeoutError(endpoint_url="http://k"), FailureKind.TRANSIENT),
        (refused("ResourceNotFoundException"), FailureKind.APPLICATION),
        (refused("AccessDeniedException"), FailureKind.APPLICATION),
        (NoCredentialsError(), FailureKind.APPLICATION),
    ],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_errors_of_kinesis(error: ClientError | BotoCoreError, kind: FailureKind) -> None:
    """Outages pass; what a person must mend is not tried for ever."""
    assert failure_kind(told_apart("orders", error)) is kind


def test_refusals_of_kinesis_that_the_reader_answers_itself() -> None:
    """It backs off from the one, and begins again after the other."""
    assert isinstance(told_apart("orders", refused("LimitExceededException")), ThrottledError)
    assert isinstance(
        told_apart("orders", refused("ExpiredIteratorException")), ExpiredIteratorError
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._ALL_BROKERS_DOWN, FailureKind.TRANSIENT),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, FailureKind.TRANSIENT),
        (KafkaError._AUTO_OFFSET_RESET, FailureKind.DATA_LOSS),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FailureKind.APPLICATION),
        (KafkaError._AUTHENTICATION, FailureKind.APPLICATION),
    ],
)
def test_errors_of_kafka(code: int, kind: FailureKind) -> None:
    """The same; and an offset that is not there is never guessed."""
    assert failure_kind(kafka.told_apart("kafka/orders/0", KafkaError(code))) is kind
