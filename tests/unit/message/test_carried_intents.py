"""Which of a checkpoint's intents carry messages."""

from __future__ import annotations

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.rollback import acknowledgements_of_carried
from broadsheet.journals.message.uuid import MessageClock


def test_acknowledgements_of_carried_finds_intents_that_carry_messages() -> None:
    """Only those could make readers, who have forgotten the producer, take messages for new."""
    publisher = Publisher(MessageClock(), 0x0100000000AB, carried_bytes_max=1000)
    one, two = (MappedJournal(name, NDJSON) for name in ("a/one", "a/two"))
    publisher.publish_uncommitted(one, {}, JsonType())
    publisher.take_appends()
    rollbacks = publisher.take_rollbacks()
    publisher.build_ack_intents()
    for target in (one, two):
        publisher.publish_uncommitted(target, {}, JsonType())
    publisher.take_appends()
    rollbacks += publisher.take_rollbacks()
    carrying, bare = publisher.build_ack_intents()
    intents = {carrying.journal: carrying.content, bare.journal: bare.content}

    (found,) = acknowledgements_of_carried(rollbacks, intents)

    assert (found.journal, found.content) == ("a/one", carrying.acknowledgement)
    assert found.clock == rollbacks[0].clock_in(carrying.content)
    assert acknowledgements_of_carried(rollbacks[1:], intents) == []
