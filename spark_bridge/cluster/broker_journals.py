"""Journals of the brokers, from the driver: listed and applied without a member."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.consumer.client.referenced_journals import look_up
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.security.auth import ClientAuth
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec, Label, LabelSelector, LabelSet
from broadsheet.wire.labels import NAME

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """A broker, as the driver reaches it."""

    address: str
    auth: ClientAuth | None
    tls: TlsConfig | None

    def names_below(self, prefix: str) -> list[str]:
        """Return the names of the journals that begin with a prefix.

        Raises:
            EndpointError: no broker could be reached.
        """
        label = Label(name=NAME, value=prefix, prefix=True)
        wanted = LabelSelector(include=LabelSet(labels=[label]))
        listing = self._asked(lambda journals: journals.list(wanted))
        return [each.spec.name for each in listing.journals]

    def specs_of(self, names: Iterable[str]) -> Mapping[str, JournalSpec]:
        """Return the specs of those journals that exist, by name.

        Raises:
            EndpointError: no broker could be reached.
        """
        return self._asked(partial(look_up, tuple(names)))

    def apply(self, changes: Sequence[ApplyRequest.Change]) -> None:
        """Create, update and delete journals.

        Raises:
            ServiceError: a broker refused a change, or could not be reached.
        """
        self._asked(lambda journals: journals.apply(changes))

    def create(self, specs: Iterable[JournalSpec]) -> None:
        """Create journals; one that somebody created in the meantime is left as it is.

        Raises:
            ServiceError: a broker refused one, or could not be reached. Those before it are created.
        """
        for spec in specs:
            try:
                self.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0)])
            except ApplyConflictError:
                continue

    def _asked(self, ask: Callable[[JournalClient], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            policy = TransportPolicy(tls=self.tls)
            async with JournalClient(self.address, auth=self.auth, policy=policy) as journals:
                return await ask(journals)

        with LoopThread(name="shard-cluster-broker") as loop:
            return loop.call(asked())
