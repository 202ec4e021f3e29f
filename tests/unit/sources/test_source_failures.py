"""What errors of other systems' clients mean for a shard: tried for ever, a bounded number of times, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from confluent_kafka import KafkaError, KafkaException

from broadsheet.consumer.errors import SourceUnavailableError
from broadsheet.consumer.registry.failure_kind import FailureKind, failure_kind
from broadsheet.consumer.sources import KafkaSource
from broadsheet.consumer.sources.kafka import partitions as kafka
from broadsheet.consumer.sources.kinesis.calls import (
    ExpiredIteratorError,
    ThrottledError,
    told_apart,
)
from broadsheet.journals import JsonType


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


class _Refused:
    """A consumer of brokers that refuse its password: calls time out, and an event tells why."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._events = [KafkaError(KafkaError._AUTHENTICATION, "SASL authentication failed")]

    def list_topics(self, topic: str, timeout: float) -> NoReturn:
        """Time out."""
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, f"no metadata of {topic}"))

    def poll(self, timeout: float) -> _Refused | None:
        """Return an event: itself."""
        return self if self._events else None

    def error(self) -> KafkaError:
        """Return the event's error."""
        return self._events.pop()

    def close(self) -> None:
        """Do nothing."""


async def test_refused_password_of_kafka_is_told_behind_the_call_that_timed_out() -> None:
    """The call alone says that no broker answers, and an operator would look at the network."""
    reader = kafka.PartitionReader("kafka/orders", lambda: _Refused({}))  # type: ignore[arg-type, return-value]  # stands in

    with pytest.raises(SourceUnavailableError, match=r"no metadata .*SASL authentication failed"):
        await reader.topic("orders")

    reader.close()


def test_settings_of_a_kafka_source_are_read_from_files_when_a_client_is_opened(
    tmp_path: Path,
) -> None:
    """The password is on the member, and neither in the code nor in what is sent to executors."""
    secret = tmp_path / "password"
    opened: list[_Refused] = []

    def open_consumer(config: dict[str, Any]) -> Any:
        opened.append(_Refused(config))
        return opened[-1]

    settings = {"bootstrap.servers": "b", "sasl.password": f"@{secret}"}
    source = KafkaSource("orders", JsonType(), settings, open_consumer=open_consumer)
    secret.write_text("s3cret\n")

    source._reader()._open_consumer()

    assert opened[-1].config["sasl.password"] == "s3cret"
