"""`assert_exactly_once`: it accepts a right application, and refuses wrong ones with what is wrong."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from broadsheet.consumer import Application
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing import NotExactlyOnceError, assert_exactly_once
from tests.support import broken_applications as broken

INPUTS = {"orders": [{"customer": name} for name in ("ada", "bob", "ada", "ada", "bob")]}


def test_a_right_application_is_accepted_at_every_step() -> None:
    """Each message consumed, finalize, commit, append and acknowledgement of four transactions is a place to die."""
    assert assert_exactly_once(broken.Alerts, INPUTS) > 20


@pytest.mark.parametrize(
    ("application", "told"),
    [
        (broken.GlobalState, r"in a second run:\n.*state\['orders'\]\['ada'\] is 6, expected 3"),
        (broken.RandomKey, r"in a second run:\n(.*\n)*.*uuid4"),
        (
            broken.ObjectState,
            r"shard 'orders' killed after .*:\n.*is 2, expected 3\n.*kept outside the store",
        ),
        (
            broken.PublishesCommitted,
            r"shard 'orders' killed after .*:\n.*'alerts' has .* twice, expected once\n(.*\n)*.*publish_uncommitted",
        ),
        (
            broken.ForgetsToRestore,
            r"shard 'orders' killed after .*:\n.*expected .*\n(.*\n)*.*restore_checkpoint does not load",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_application_is_refused_with_a_text_that_helps(
    application: Callable[[], Application[broken.CountStore]], told: str
) -> None:
    """Each of the usual mistakes is found, and the text leads to it."""
    with pytest.raises(NotExactlyOnceError, match=told):
        assert_exactly_once(application, INPUTS)


def test_a_store_from_scratch_is_accepted_if_its_commits_wait() -> None:
    """A store with a thread of its own works in virtual time, and one that ignores `wait_for` loses messages."""
    alone = {"orders": [{"customer": name} for name in ("ada", "ada")]}
    tried = assert_exactly_once(
        broken.OwnStore, alone, state=lambda store: dict(store.state), rounds=1
    )
    assert tried > 5

    with pytest.raises(NotExactlyOnceError, match=r"'alerts' has .* not at all.*\n.*wait_for"):
        assert_exactly_once(
            broken.CommitsTooEarly, alone, state=lambda store: dict(store.state), rounds=1
        )


def test_a_repeated_effect_is_refused_if_it_is_shown() -> None:
    """What a fake of another service got is compared, too: a mail that is sent twice."""
    with pytest.raises(NotExactlyOnceError, match=r'effect "ada" happened 4 times, expected 3'):
        assert_exactly_once(broken.SendsMail, INPUTS, effects=lambda: broken.SendsMail.mails)


def test_fields_that_may_differ_are_ignored() -> None:
    """The time of processing differs from run to run, and is no fault."""

    class Stamped(broken.Alerts):
        def alert(self, store: broken.CountStore, customer: str) -> dict[str, object]:
            return super().alert(store, customer) | {"stamp": uuid.uuid4().hex}

    assert assert_exactly_once(Stamped, INPUTS, ignore=("stamp",), rounds=1) > 5


def test_inputs_without_messages_are_refused() -> None:
    """An assertion that tried nothing must not pass."""
    with pytest.raises(ValidationError, match="inputs: expected messages by journal"):
        assert_exactly_once(broken.Alerts, {})
