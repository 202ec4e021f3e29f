"""Commands: calls that change a shard's state, exactly once.

    caller ── RPC, command id ──► primary: execute ── append ──► the shard's command journal
                                     ▲                                      │ read
                                     │                                      ▼
                                     └── answer ◄── commit of ──── consume: applied, and its answer kept

The effect of a command is a message, so it commits with the position behind it, as any message does. The answer is kept
in the same transaction under the command's id, and is told when that is durable. A caller that got none, because the
primary died or the connection broke, repeats the call with the same id: the command is appended a second time, is not
applied again, and the answer is the one of the first time.

Source: Lee et al., "Implementing Linearizability at Large Scale and Low Latency" (SOSP 2015), for completion records
that commit with the effect. Records that are removed by age, and a journal that carries the requests, are ours.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from broadsheet.consumer.application import Resolution, Shard
from broadsheet.consumer.commands.answers import Answers, KeptAnswer
from broadsheet.consumer.commands.appender import CommandAppender
from broadsheet.consumer.commands.errors import (
    CommandAnswerForgottenError,
    CommandIdReusedError,
    CommandRefusedError,
)
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonStructType, Meta
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.division import KEYLESS
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.uuid import Flags, unix_seconds_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import Format
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import KeyRange, group_of, key_range_of
from broadsheet.wire.labels import CONTENT_TYPE, SPLIT_OF, value_of

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

ID_CHARACTERS_MAX: Final = 200
KEEP_SECONDS: Final = 3600.0
"""Time for which answers are kept by default, seconds: longer than a caller repeats a call."""
_FORGET_AT_ONCE: Final = 1000
"""Most answers that one command removes, so that no command waits for many."""
_FORGETS_PER_KEEP: Final = 64
"""Old answers are looked for so often within the time for which they are kept."""


class CommandMessage(msgspec.Struct, omit_defaults=True):
    """A command in its journal. Each field has a default, because an acknowledgement has nothing but a UUID."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    id: str = ""
    shard: str = ""
    """The shard that executes it; others that read the journal pass over it."""
    request: msgspec.Raw = msgspec.Raw(b"null")


class _Outcome(msgspec.Struct, omit_defaults=True):
    """The content of a kept answer."""

    request_digest: str
    response: msgspec.Raw = msgspec.Raw(b"null")
    refusal: str | None = None


_COMMANDS: Final = JsonStructType(CommandMessage)
ANSWER: Final = Format(
    "the answer of a command", "let a member of that release serve the shard, and ask again"
)


class Commands(Generic[RequestT, ResponseT]):
    """The commands of an application: one kind of request, or a union of several.

        class Fraud:
            commands = Commands("fraud/commands", Purchase, Score, answers=SqliteAnswers())

            def message_type(self, journal_spec):
                return self.commands.message_type(journal_spec) or JSON

            def consume_message(self, shard, store, envelope, publisher):
                if self.commands.is_command(envelope):
                    self.commands.consume(shard, store, envelope, lambda purchase: score(store, purchase))

    and in a handler of its own service:

            async with serving_shard(resolver, context, shard_id) as resolution:
                score = await self.commands.execute(resolution, purchase, command_id=request.id)
    """

    def __init__(
        self,
        prefix: str,
        request: type[RequestT],
        response: type[ResponseT],
        *,
        answers: Answers[Any],
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        """Describe the commands.

        Args:
            prefix: The command journal of a shard is its one source of this name, or below it (`{prefix}/…`). Its
                content type is JSON lines.
            request: Class of requests, as msgspec reads JSON: a Struct, a dataclass, a union of tagged Structs.
            response: Class of responses, likewise.
            answers: Where the application's store keeps answers.
            keep_seconds: How long; a command that is repeated later is executed a second time.

        Raises:
            ValidationError: `keep_seconds` is not positive.
        """
        if not keep_seconds > 0:
            raise ValidationError("keep_seconds", f"expected a positive number, got {keep_seconds}")
        self._prefix = prefix
        self._part = re.compile(rf"{re.escape(prefix)}(-[0-9a-f]{{4}})+")
        self._known: dict[str, KeyRange | None] = {}
        """Groups of keys that each journal takes, by its name; None: it is no command journal."""
        self._requests = msgspec.json.Decoder(request)
        self._responses = msgspec.json.Decoder(response)
        self._answers = answers
        self._keep_ms = int(keep_seconds * 1000)
        self._appenders: WeakKeyDictionary[JournalClient, dict[str, CommandAppender]] = (
            WeakKeyDictionary()
        )
        self._forgotten_ms: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Time of the last look for old answers, by store; milliseconds since the Unix epoch."""

    # -- for the shard's worker thread

    def message_type(self, journal_spec: JournalSpec) -> MessageType | None:
        """Return the encoding of a command journal; None for other journals.

        Raises:
            ValidationError: the journal's content type is not JSON lines.
        """
        if self._learn(journal_spec) is None:
            return None
        content_type = value_of(journal_spec.labels, CONTENT_TYPE)
        if content_type != NDJSON:
            raise ValidationError(
                f"journal {journal_spec.name}",
                f"a command journal has the label content-type={NDJSON}, not {content_type or 'none'}",
            )
        return _COMMANDS

    def is_command(self, envelope: Envelope) -> bool:
        """Return whether a message comes from a command journal; its acknowledgements do, too."""
        return self._known.get(envelope.journal) is not None

    # `Any`: the store's type is the application's own.
    def consume(
        self,
        shard: Shard,
        store: Any,
        envelope: Envelope,
        apply: Callable[[RequestT], ResponseT],
    ) -> None:
        """Apply a command that has no answer yet, and keep its answer; call it from `consume_message`.

        Args:
            shard: The shard.
            store: Its store.
            envelope: A message of a command journal.
            apply: Changes the state, publishes, and returns the response. To refuse the command it raises
                `CommandRefusedError` before it has done either. Any other exception fails the shard, as that of any
                message does.
        """
        command: CommandMessage = envelope.message
        if envelope.flags == Flags.ACK_TXN or command.shard != shard.id or not command.id:
            return
        if not _is_id(command.id):
            # Not of `execute`, so no call waits for it; a table of answers might not take the id, each time again.
            return
        at_ms = self._time_of(envelope)
        if self._answers.get(store, command.id) is None:
            outcome = self._outcome_of(command.request, apply)
            self._answers.keep(store, command.id, KeptAnswer(at_ms, msgspec.json.encode(outcome)))
        self._forget_old(store, at_ms)

    # -- for the event loop

    async def execute(
        self, resolution: Resolution, request: RequestT, *, command_id: str = ""
    ) -> ResponseT:
        """Have the shard execute a command; return its response once it is durable.

        If this raises anything but the first three errors, the command may have been executed, or still may be: repeat
        it with the same id.

        Args:
            resolution: Of the shard, with its primary in this process (`serving_shard`).
            request: The request.
            command_id: Chosen by the caller, one for each request and shard, the same in each repetition of it; at most
                200 printable characters. Empty: a random one, for callers that do not repeat.

        Raises:
            ValidationError: the request or the id is not valid, or the shard has no command journal; nothing was done.
            CommandRefusedError: the application refused the command.
            CommandIdReusedError: another request was executed under this id; this one was not.
            CommandAnswerForgottenError: the command was executed, and its answer is no longer kept.
            LaterFormatError: a later release kept the answer, in a form that this one must not read.
            ShardStoppedError: the shard stopped here.
            JournalError, EndpointError: the command journal could not be appended to.
        """
        shard = resolution.shard
        assert shard is not None, "only the shard's primary executes commands"
        encoded = self._encoded(request)
        command = CommandMessage(
            id=_checked_id(command_id) or uuid4().hex, shard=shard.id, request=msgspec.Raw(encoded)
        )
        journal = await self._journal_of(shard)
        await resolution.read_through(await self._appender(shard.journals, journal).append(command))
        kept = await resolution.call(self._answers.get, command.id)
        if kept is None:
            raise CommandAnswerForgottenError(command.id)
        return self._told(command.id, encoded, kept)

    # --

    def _learn(self, spec: JournalSpec) -> KeyRange | None:
        """Return the groups of keys of a command journal: all, or those of a part; None: it is another journal."""
        name = spec.name
        is_below = name == self._prefix or name.startswith(f"{self._prefix}/")
        is_part = bool(value_of(spec.labels, SPLIT_OF))
        # Parts of a journal that has just the prefix as its name lie beside it, not below.
        is_ours = is_below or (is_part and bool(self._part.fullmatch(name)))
        self._known[name] = found = key_range_of(spec.labels) if is_ours else None
        return found

    async def _journal_of(self, shard: Shard) -> str:
        """Return the source that takes commands; of a divided journal that is the part of the empty key, always.

        Raises:
            ValidationError: there is none, or more than one.
            JournalError, EndpointError: a source's spec could not be read.
        """
        behind = {each.journal: each.after for each in shard.spec.sources}
        for name in behind.keys() - self._known.keys():
            self._learn((await shard.journals.get(name)).spec)
        ours = {name: owned for name in behind if (owned := self._known[name]) is not None}
        group, divided = group_of(KEYLESS), set(behind.values())
        found = [name for name, owned in ours.items() if group in owned and name not in divided]
        if len(found) != 1:
            raise ValidationError(
                f"shard {shard.id}: sources",
                f"expected one command journal, named {self._prefix} or below it, got {sorted(ours) or 'none'}",
            )
        (journal,) = found
        # As long as a journal is a source beside its parts it may take commands; the appender learns that it does not.
        while behind[journal] in ours:
            journal = behind[journal]
        return journal

    def _appender(self, journals: JournalClient, journal: str) -> CommandAppender:
        own = self._appenders.setdefault(journals, {})
        if journal not in own:
            own[journal] = CommandAppender(journals, MappedJournal(journal, NDJSON), _COMMANDS)
        return own[journal]

    def _encoded(self, request: RequestT) -> bytes:
        try:
            encoded = msgspec.json.encode(request)
            self._requests.decode(encoded)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise ValidationError("request", str(error)) from error
        return encoded

    def _outcome_of(self, encoded: msgspec.Raw, apply: Callable[[RequestT], ResponseT]) -> _Outcome:
        digest = _digest(encoded)
        try:
            request = self._requests.decode(encoded)
        except msgspec.DecodeError as error:
            # Another program, or an older version of this one, has written it: no reason to fail the shard for ever.
            return _Outcome(digest, refusal=f"request: {error}")
        try:
            response = apply(request)
        except CommandRefusedError as error:
            return _Outcome(digest, refusal=str(error))
        return _Outcome(digest, msgspec.Raw(msgspec.json.encode(response)))

    def _told(self, command_id: str, encoded: bytes, kept: KeptAnswer) -> ResponseT:
        outcome = ANSWER.decode_json(kept.content, _Outcome)
        if outcome.request_digest != _digest(encoded):
            raise CommandIdReusedError(command_id)
        if outcome.refusal is not None:
            raise CommandRefusedError(outcome.refusal)
        return self._responses.decode(outcome.response)

    def _time_of(self, envelope: Envelope) -> int:
        # A publisher whose clock is ahead must not have answers forgotten early.
        return int(min(unix_seconds_of(envelope.clock), time.time()) * 1000)

    def _forget_old(self, store: Any, at_ms: int) -> None:
        if at_ms - self._forgotten_ms.get(store, 0) < self._keep_ms // _FORGETS_PER_KEEP:
            return
        if self._answers.forget(store, at_ms - self._keep_ms, _FORGET_AT_ONCE) < _FORGET_AT_ONCE:
            self._forgotten_ms[store] = at_ms


def _checked_id(command_id: str) -> str:
    if not _is_id(command_id):
        raise ValidationError(
            "command_id", f"expected at most {ID_CHARACTERS_MAX} printable characters"
        )
    return command_id


def _is_id(command_id: str) -> bool:
    return len(command_id) <= ID_CHARACTERS_MAX and command_id.isprintable()


def _digest(encoded: bytes | msgspec.Raw) -> str:
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()
