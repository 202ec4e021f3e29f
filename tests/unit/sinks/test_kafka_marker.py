"""The marker of a shard in Kafka, and what follows errors."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, strategies as st

from broadsheet.consumer.stores.kafka.marker import (
    METADATA_BYTES_MAX,
    InlineCheckpoint,
    RecordPlace,
    inline_metadata,
    parse_metadata,
    record_metadata,
    sink_name,
)
from broadsheet.consumer.stores.kafka.verdicts import (
    TxnVerdict,
    is_passing,
    is_undecided,
    verdict_of,
)
from broadsheet.runtime.errors import ValidationError


@given(st.binary(max_size=4_000))
def test_inline_checkpoint_is_parsed_to_itself_or_needs_a_record(content: bytes) -> None:
    """Kafka refuses metadata of 4,096 bytes: what is too long must be noticed before it is sent."""
    metadata = inline_metadata(content)

    if metadata is None:
        assert len(content) > METADATA_BYTES_MAX // 2
    else:
        assert len(metadata) <= METADATA_BYTES_MAX
        assert parse_metadata(metadata) == InlineCheckpoint(content)


def test_place_of_a_record_is_parsed_to_itself() -> None:
    """A checkpoint of any length is found by one request and one record."""
    assert parse_metadata(record_metadata(RecordPlace(3, 2**40))) == RecordPlace(3, 2**40)


@pytest.mark.parametrize(
    "metadata", [None, "", "2 inline eA==", "1 inline ***", "1 record a b", "x"]
)
def test_marker_of_another_program_or_release_is_refused(metadata: str | None) -> None:
    """To take it for none would send everything again."""
    with pytest.raises(ValidationError, match="marker"):
        parse_metadata(metadata)


def test_names_of_shards_in_kafka_are_distinct_between_clusters() -> None:
    """Two clusters that share Kafka would fence each other."""
    assert sink_name("/broadsheet/a", "s") == "/broadsheet/a/s"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (KafkaError(KafkaError._FENCED, "", True), TxnVerdict.FENCED),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), TxnVerdict.FENCED),
        (KafkaError(KafkaError._FATAL), TxnVerdict.FENCED),
        (
            KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "", True),
            TxnVerdict.REFUSED,
        ),
        (KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "", False, False, True), TxnVerdict.REPEAT),
        (KafkaError(KafkaError._TIMED_OUT, "", False, True), TxnVerdict.AGAIN),
        (KafkaError(KafkaError._TIMED_OUT), TxnVerdict.AGAIN),
        (KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE), TxnVerdict.REFUSED),
    ],
)
def test_errors_of_a_transaction_are_told_apart(error: KafkaError, verdict: TxnVerdict) -> None:
    """A timed-out commit must be called again and never aborted: its outcome is unknown."""
    assert verdict_of(error) is verdict


def test_state_of_the_client_repeats_what_was_produced_but_never_a_commit() -> None:
    """`produce` tells nothing else of an error in the background; behind a commit a repetition may be a duplicate."""
    error = KafkaError(KafkaError._STATE)

    assert verdict_of(error, is_committing=False) is TxnVerdict.REPEAT
    assert verdict_of(error) is TxnVerdict.REFUSED
    # In a commit it is neither repeated nor held against the shard: the next attempt reads what the brokers have.
    assert is_undecided(error)
    assert not is_passing(error)


def test_brokers_that_are_away_are_no_fault_of_the_request() -> None:
    """Such a shard tries for ever, and is not quarantined."""
    assert is_passing(KafkaError(KafkaError._TRANSPORT))
    assert not is_passing(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
