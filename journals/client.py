r"""Client of the journal service, for applications, shards and tools.

    async with JournalClient("http://127.0.0.1:8081") as client:
        await client.append("flights/part-000", b'{"id":1}\n')
        async for span in client.reader("flights/part-000", block=False):
            print(span.offset, span.content)

Every method belongs to the event loop that entered the client. While no broker can be reached, read-only requests, and
appends that certainly wrote nothing, are repeated for the policy's `patience_seconds`; blocking reads and watches
without limit.

Source: gazette/core broker/client (roles).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from google.protobuf.duration_pb2 import Duration

from broadsheet.journals.appender import append_once, append_patiently, check_append
from broadsheet.journals.channels import ChannelCache, Channels
from broadsheet.journals.direct_fragments import FragmentOpener, ReadTotals
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalNotFoundError,
    JournalSuspendedError,
)
from broadsheet.journals.extensions import (
    delete_fragments,
    list_quarantine,
    purge_quarantine,
    verify_journal,
)
from broadsheet.journals.guard import OffsetGuard, Present
from broadsheet.journals.known_sums import KnownSumsCache
from broadsheet.journals.listing import (
    BrokerAnswer,
    ListResult,
    apply_changes,
    ask_once,
    list_fragments,
    list_journals,
    probe_store,
    watch_journals,
)
from broadsheet.journals.message.division import DividedJournals
from broadsheet.journals.pipelining import Pipelined
from broadsheet.journals.reader import Reader, ReaderOptions, ReadSpan as ReadSpan
from broadsheet.journals.route_cache import RouteCache
from broadsheet.journals.sums_requests import SumsRequests
from broadsheet.journals.transport import JournalTransport, TransportPolicy
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.security.auth import ClientAuth, NoAuth
from broadsheet.wire.alphabet import split_journal
from broadsheet.wire.fragments_pb2 import QuarantineEntry, VerifyJournalResponse
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    Fragment,
    FragmentsRequest,
    FragmentsResponse,
    LabelSelector,
    LabelSet,
    ListResponse,
    ReadRequest,
)
from broadsheet.wire.labels import NAME, SPLIT_EPOCH, SPLIT_OF, label_set

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAY_APPEND_ATTEMPTS = 10
"""Questions whether an append is permitted whose answers may be lost."""


class JournalClient:
    """Reads, appends, lists and applies journals. Enter it on the loop that uses it."""

    def __init__(
        self,
        address: str,
        *,
        auth: ClientAuth | None = None,
        policy: TransportPolicy | None = None,
        channels: Channels | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Parse the address; nothing is opened before the client is entered.

        Args:
            address: Any broker: `http://host:port`, `https://host:port`, `unix:///path` or `host:port`; several,
                separated by commas, of which the next is asked when one cannot be reached.
            auth: Signs requests; none are signed if absent.
            policy: The caller's zone, its patience, and more; the defaults if absent.
            channels: Replace the gRPC channels to `address`, if given.
            clock: Times patience.

        Raises:
            ValidationError: the address is malformed.
        """
        self.address = address
        policy = policy or TransportPolicy()
        clock = clock or SystemClock()
        self._transport = JournalTransport(
            channels or ChannelCache(address, tls=policy.tls_files, clock=clock),
            RouteCache(policy.route_cache_size, policy.route_ttl_seconds, clock=clock),
            auth or NoAuth(),
            policy,
            clock,
        )
        self.divided = DividedJournals()
        """Divided journals that this client knows of; see `learn_divided`."""
        sums = KnownSumsCache(SumsRequests(self._transport).ask)
        self._fragments = FragmentOpener(policy.fragments, clock, sums)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel; calls in progress are cancelled. Idempotent."""
        try:
            await self._fragments.close()
        finally:
            await self._transport.channels.close()

    @property
    def read_totals(self) -> ReadTotals:
        """Content that readers received, from brokers and without them."""
        return self._transport.read_totals

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Show what readers receive among the metrics of a registry."""
        # Imported here, because few clients show metrics, and the library is slow to import.
        from broadsheet.journals.metrics import JournalReads

        registry.register(JournalReads(self.read_totals))

    async def list(self, selector: LabelSelector | None = None) -> ListResult:
        """Return the journals that match; all if there is no selector.

        Raises:
            ValidationError: the selector is malformed.
            EndpointError: no broker could be reached.
        """
        return await list_journals(self._transport, selector or LabelSelector())

    async def get(self, name: str) -> ListResponse.Journal:
        """Return one journal's spec, revisions and route; a `;meta` is ignored.

        Raises:
            JournalNotFoundError: it does not exist, or is hidden from us.
            EndpointError: no broker could be reached.
        """
        bare, _ = split_journal(name)
        listing = await self.list(LabelSelector(include=label_set((NAME, bare))))
        if not listing.journals:
            raise JournalNotFoundError(bare)
        return listing.journals[0]

    async def learn_divided(self, divided: str = "") -> None:
        """Look up which journals are divided, and into which parts, for the publishers of this client.

        Args:
            divided: A journal that is divided although its spec may not say so yet: its register does.

        Raises:
            EndpointError: no broker could be reached.
        """
        specs = [
            each.spec
            for label in (SPLIT_EPOCH, SPLIT_OF)
            for each in (await self.list(LabelSelector(include=label_set((label, ""))))).journals
        ]
        self.divided.learn(specs, divided=divided)

    def watch_list(self, selector: LabelSelector | None = None) -> AsyncIterator[ListResult]:
        """Yield the whole listing now and whenever a listed spec changes, without end.

        Raises:
            ServiceError: the first listing failed; later failures are retried.
        """
        return watch_journals(self._transport, selector or LabelSelector())

    async def apply(
        self, changes: Sequence[ApplyRequest.Change], *, batch_size: int | None = None
    ) -> ApplyResponse:
        """Create, update and delete journals.

        Later reads and appends of this client wait until their broker has seen the change.

        Args:
            changes: All or none are applied.
            batch_size: Apply in transactions of so many instead; those before a failing one stay applied.

        Raises:
            ValidationError: a change is malformed; nothing was applied.
            ApplyConflictError: a spec's revision is not the expected one.
            EndpointError: no broker could be reached, or its answer was lost.
        """
        return await apply_changes(self._transport, changes, batch_size)

    def reader(
        self,
        journal: str,
        *,
        offset: int = 0,
        block: bool = True,
        end_offset: int = 0,
        metadata_only: bool = False,
        begin_mod_time: int = 0,
        min_etcd_revision: int = 0,
        linger_seconds: float = 0.0,
        guard: OffsetGuard | None = None,
        stored: Sequence[FragmentsResponse.ListedFragment] = (),
    ) -> Reader:
        """Return an iterator over the journal's bytes.

        Stored fragments are read where they lie if the policy's `fragments` permit it, else through the broker.

        Args:
            journal: Its name; may carry `;meta`.
            offset: First byte wanted; -1 is the present write head.
            block: Wait at the write head without limit, instead of ending there.
            end_offset: End before this byte; 0 is no end.
            metadata_only: End with the first answer, which sets `write_head` and `fragment`.
            begin_mod_time: Skip stored fragments last modified before, Unix seconds.
            min_etcd_revision: Let the broker wait until it has seen this revision.
            linger_seconds: Delay of content at the write head, so that more of it comes at once: less work for a reader
                that can wait. 0 to 0.25; brokers of Gazette do not linger.
            guard: Ends the read with JournalReplacedError if the journal no longer holds what was read before.
            stored: Fragments with signed URLs, as `list_fragments` returned them. No broker is asked for what they hold
                while their URLs are valid.

        Raises:
            ValidationError: an argument is malformed.
        """
        request = ReadRequest(
            journal=journal,
            offset=offset,
            block=block,
            end_offset=end_offset,
            metadata_only=metadata_only,
            begin_mod_time=begin_mod_time,
            min_etcd_revision=min_etcd_revision,
        )
        options = ReaderOptions(linger_seconds=linger_seconds, guard=guard, stored=stored)
        return Reader(self._transport, self._fragments, request, options)

    async def append(
        self,
        journal: str,
        content: bytes | Sequence[bytes | memoryview],
        *,
        offset: int = 0,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        min_etcd_revision: int = 0,
        retry: bool = True,
        in_turn: Pipelined | None = None,
    ) -> AppendResponse:
        """Append `content` as one contiguous, atomic span.

        An append whose commit was sent and whose answer was lost is never repeated here: a caller who repeats it gets
        at-least-once. For exactly-once, demand `offset` and repeat with the same value. WrongAppendOffsetError then
        means that some append landed there, and reading it tells which.

        Args:
            journal: Its name; may carry `;meta`.
            content: The bytes, or pieces of them in order, views of single bytes among them. None at all makes a
                barrier, which tells the write head.
            offset: The write head demanded; 0 demands nothing.
            check_registers: Must match the journal's registers; an empty register set matches all.
            union_registers: Set in the registers with the append.
            subtract_registers: Removed from them, before the union.
            min_etcd_revision: Let the broker wait until it has seen this revision.
            retry: Repeat transient failures that wrote nothing, for the client's patience.
            in_turn: Its place in the pipelined order; such an append is tried once.

        Returns:
            The broker's answer; `commit` says where the bytes are. It has their SHA-1 only if they were appended by a
            separate call: brokers do not sum the appends of streams.

        Raises:
            ValidationError: an argument is malformed.
            AppendOutcomeUnknownError: the bytes may or may not be there.
            PredecessorNotCommittedError: its predecessors are not known to have succeeded; nothing was written.
            RegisterMismatchError: fenced; nothing was written.
            WrongAppendOffsetError: the write head is elsewhere; nothing was written.
            JournalError: another refusal; nothing was written.
            EndpointError: no broker could be reached; nothing was written.
        """
        pieces = (content,) if isinstance(content, bytes) else content
        request = AppendRequest(
            journal=journal,
            offset=offset,
            check_registers=check_registers,
            union_registers=union_registers,
            subtract_registers=subtract_registers,
            min_etcd_revision=self._transport.revision_floor(min_etcd_revision),
        )
        check_append(request, sum(map(len, pieces)))
        if retry and in_turn is None:
            return await append_patiently(self._transport, request, pieces)
        return await append_once(self._transport, request, pieces, in_turn)

    async def suspend(self, journal: str, *, force: bool = False) -> bool:
        """Suspend a journal without appenders; return whether it is suspended now.

        An empty journal is suspended fully, any other partly: it can still be read. The next append resumes it.

        Args:
            journal: Its name.
            force: Also if its content was not in stored fragments for its flush interval (a day, if it has none).

        Raises:
            JournalError: the journal does not exist, or cannot be appended to.
            EndpointError: no broker could be reached.
        """
        how = AppendRequest.SUSPEND_NOW if force else AppendRequest.SUSPEND_IF_FLUSHED
        try:
            await self._barrier(AppendRequest(journal=journal, suspend=how))
        except JournalSuspendedError:
            return True
        return False

    async def reset_head(self, journal: str) -> int:
        """Accept that a journal's end was lost: let it continue at the end of its fragment index; return the offset.

        Appends are refused with IndexHasGreaterOffsetError until then. The bytes that were lost become a hole, which
        readers skip. A journal that lost nothing is left as it is.

        Raises:
            WrongAppendOffsetError: another append came in between, so it needs no reset.
            JournalError: the journal does not exist, is suspended, or cannot be appended to.
            EndpointError: no broker could be reached.
        """
        head = await self.write_head(journal)
        await self._barrier(
            AppendRequest(journal=journal, offset=head, suspend=AppendRequest.SUSPEND_KEEP)
        )
        return head

    async def require_may_append(self, journal: str) -> None:
        """Check that this client may append to a journal, without changing it.

        Raises:
            UnauthenticatedError, NotAuthorizedError: it may not.
            JournalError: the journal does not exist, is hidden from the client, or cannot be appended to at present.
            EndpointError: no broker could be reached.
        """
        for attempt in range(MAY_APPEND_ATTEMPTS):
            # Without content nothing is written, and a suspended journal stays so.
            request = AppendRequest(journal=journal, suspend=AppendRequest.SUSPEND_NO_RESUME)
            try:
                await self._barrier(request)
                return
            except AppendOutcomeUnknownError:
                # gRPC sometimes loses the status of a call that is refused while it is written. That is no answer.
                if attempt == MAY_APPEND_ATTEMPTS - 1:
                    raise

    async def _barrier(self, request: AppendRequest) -> AppendResponse:
        request.min_etcd_revision = self._transport.revision_floor(0)
        check_append(request, 0)
        return await append_patiently(self._transport, request, ())

    async def ask_once(self, *, timeout_seconds: float) -> BrokerAnswer:
        """Check that a broker answers, a refusal included; return what it says of itself. Never repeated.

        Args:
            timeout_seconds: Longest wait for the answer.

        Raises:
            EndpointError: it did not answer.
        """
        return await ask_once(self._transport, timeout_seconds=timeout_seconds)

    async def renew_connection(self) -> None:
        """Drop the connection to `address`, which is silent, and all calls on it.

        Requests that can be repeated continue on a new connection; an append whose answer is lost raises an error.
        """
        await self._transport.channels.renew()

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt; ends early when an unreachable broker can be reached again."""
        await self._transport.pause(seconds)

    async def write_head(self, journal: str) -> int:
        """Return the journal's write head, bytes.

        Raises:
            JournalError: the journal does not exist, is suspended, or may not be read.
            EndpointError: no broker could be reached.
        """
        return (await self.present(journal)).write_head

    async def present(self, journal: str) -> Present:
        """Return the journal's write head and identity.

        Raises:
            JournalError: the journal does not exist, is suspended, or may not be read.
            EndpointError: no broker could be reached.
        """
        async with self.reader(journal, offset=-1, block=False, metadata_only=True) as reader:
            async for _ in reader:
                raise AssertionError("a metadata-only read delivers nothing")
            return Present(reader.write_head, reader.identity)

    async def has_content_at(self, journal: str, offset: int) -> bool:
        """Tell whether the journal has the byte at an offset, which may be gone, or not be there yet.

        Raises:
            JournalError: the journal does not exist, is suspended, or may not be read.
            EndpointError: no broker could be reached.
        """
        async with self.reader(journal, offset=offset, block=False, metadata_only=True) as reader:
            async for _ in reader:
                raise AssertionError("a metadata-only read delivers nothing")
            fragment = reader.fragment
        return fragment is not None and fragment.begin <= offset < fragment.end

    async def list_fragments(
        self,
        journal: str,
        *,
        begin_mod_time: int = 0,
        end_mod_time: int = 0,
        page_limit: int = 0,
        signature_ttl_seconds: float = 0.0,
    ) -> Sequence[FragmentsResponse.ListedFragment]:
        """Return the journal's fragments, ascending by begin.

        Args:
            journal: Its name.
            begin_mod_time: Leave out stored fragments last modified before, Unix seconds.
            end_mod_time: Leave out local fragments and those last modified after, Unix seconds; 0 is no end.
            page_limit: Fragments of one answer; all pages are joined. 0 is the broker's default.
            signature_ttl_seconds: Life of signed URLs to fetch stored fragments with; 0 asks for none.

        Raises:
            ValidationError: an argument is malformed.
            JournalError: the journal does not exist, is suspended, or may not be read.
            EndpointError: no broker could be reached.
        """
        request = FragmentsRequest(
            journal=journal,
            begin_mod_time=begin_mod_time,
            end_mod_time=end_mod_time,
            page_limit=page_limit,
        )
        if signature_ttl_seconds:
            life = Duration()
            life.FromNanoseconds(int(signature_ttl_seconds * 1e9))
            request.signatureTTL.CopyFrom(life)
        return await list_fragments(self._transport, request)

    async def probe_store(self, store: str = "file:///") -> str:
        """Let the broker write, read and remove a file in a fragment store; return what went wrong, empty if nothing.

        Args:
            store: URL of the store, as journals' specs name it. An embedded broker probes its own disk, whatever it is.

        Raises:
            ValidationError: it is no URL.
            EndpointError: no broker could be reached.
        """
        return await probe_store(self._transport, store)

    async def delete_fragments(
        self, journal: str, fragments: Sequence[Fragment]
    ) -> Sequence[Fragment]:
        """Remove sealed fragments permanently; return the begin and end of those that are gone now, ascending.

        Fragments that differ from their description are not removed, nor is the journal's newest one. Only brokers of
        this project support this; with Gazette's, the owner of the fragment store removes its files.

        Args:
            journal: Its name.
            fragments: As `list_fragments` described them.

        Raises:
            ValidationError: an argument is malformed.
            JournalError: the journal does not exist, or its disk failed.
            RpcFailedError: the broker cannot remove fragments; nothing was removed.
            EndpointError: no broker could be reached, or its answer was lost.
        """
        return await delete_fragments(self._transport, journal, fragments)

    def verify(
        self, journal: str, *, discard_damaged: bool = False
    ) -> AsyncIterator[VerifyJournalResponse]:
        """Make the broker read and verify every sealed fragment of a journal.

        Yields the number of fragments first, then the result of each. Only brokers of this project support this.

        Args:
            journal: Its name.
            discard_damaged: Give up damaged bytes: they become holes, which readers skip.

        Raises:
            JournalError: the journal does not exist.
            RpcFailedError: the broker cannot verify.
            EndpointError: no broker could be reached, or its answer was lost.
        """
        return verify_journal(self._transport, journal, discard_damaged=discard_damaged)

    async def list_quarantine(self) -> Sequence[QuarantineEntry]:
        """Return unknown data that the broker moved aside, oldest first; only brokers of this project support this.

        Raises:
            RpcFailedError: the broker has no quarantine.
            EndpointError: no broker could be reached.
        """
        return await list_quarantine(self._transport)

    async def purge_quarantine(self, entry: str) -> None:
        """Remove one entry of the broker's quarantine permanently.

        Raises:
            RpcFailedError: there is no such entry, or the broker has no quarantine.
            EndpointError: no broker could be reached, or its answer was lost.
        """
        await purge_quarantine(self._transport, entry)
