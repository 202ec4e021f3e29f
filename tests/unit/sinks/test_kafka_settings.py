"""Settings of Kafka's clients for a sink."""

from __future__ import annotations

import pytest

from broadsheet.consumer.stores.kafka.settings import (
    checked_settings,
    for_readers,
    ours,
    refuse_secrets,
)
from broadsheet.consumer.stores.setting_files import read_files
from broadsheet.runtime.errors import ValidationError

BROKER = {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    "name",
    [
        "transactional.id",
        "enable.idempotence",
        "acks",
        "transaction.timeout.ms",
        "isolation.level",
        "group.id",
    ],
)
def test_setting_on_which_exactly_once_depends_is_refused(name: str) -> None:
    """A user who changed it would get duplicates, and would not know."""
    with pytest.raises(ValidationError, match=rf"config\[{name}\]: expected none"):
        checked_settings({**BROKER, name: "mine"})


def test_other_settings_pass_through_and_win_over_defaults() -> None:
    """SASL, TLS and everything else of the client is the user's."""
    settings = {
        **BROKER,
        "sasl.mechanism": "PLAIN",
        "retry.backoff.ms": 50,
        "partitioner": "random",
    }

    assert checked_settings(settings).items() >= settings.items()


def test_settings_without_brokers_are_refused() -> None:
    """Else the client would wait for ever."""
    with pytest.raises(ValidationError, match="expected addresses of brokers"):
        checked_settings({})


def test_value_of_a_file_is_its_content_without_the_line_end() -> None:
    """Editors end files with a line end, which is no part of a password."""
    read = {"/p": "se cret\n"}.__getitem__

    assert read_files({"sasl.password": "@/p", "n": 1}, read) == {
        "sasl.password": "se cret",
        "n": 1,
    }


def test_missing_file_is_named_with_its_setting(tmp_path: object) -> None:
    """The operator of one member reads which file it lacks."""
    with pytest.raises(ValidationError, match=rf"ssl.key.pem: cannot read the file {tmp_path}/k"):
        read_files({"ssl.key.pem": f"@{tmp_path}/k"})


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem"])
def test_secret_in_a_label_is_refused_without_showing_it(name: str) -> None:
    """Everyone who may list shards reads labels, and logs have errors."""
    with pytest.raises(ValidationError, match="it is a secret") as caught:
        refuse_secrets({name: "hunter2"}, "labels")

    assert "hunter2" not in str(caught.value)
    refuse_secrets({name: "@/etc/hunter2"}, "labels")


def test_readers_get_what_says_how_to_connect_and_no_setting_of_producers() -> None:
    """A consumer or an admin client warns of settings that it has not."""
    settings = {**checked_settings({**BROKER, "sasl.username": "u"}), **ours("id", 10.0)}

    assert for_readers(settings) == {**BROKER, "sasl.username": "u"}
