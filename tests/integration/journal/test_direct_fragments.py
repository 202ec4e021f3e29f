"""Stored fragments are read where they lie, and at the broker whenever that fails."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner
from structlog.testing import capture_logs

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.cli.main import main
from broadsheet.journals.client import JournalClient, ReadSpan
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.errors import JournalDamagedError
from broadsheet.journals.fragment_content import PIECE_BYTES
from broadsheet.journals.transport import TransportPolicy
from broadsheet.wire import journal_pb2 as pb
from tests.support.broker import journal_spec
from tests.support.certificates import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.scripted_broker import Context, ScriptedBroker, header
from tests.support.stored_fragments import (
    ENCODERS,
    JOURNAL,
    StoredJournal,
    serving,
    web_store,
)

CODECS = tuple(ENCODERS)


def _content(size: int, seed: int = 1) -> bytes:
    """Return bytes that compress, but not to nothing."""
    words = random.Random(seed).choices([b"alpha\n", b"beta\n", b"gamma gamma\n", b"\n"], k=size)
    return b"".join(words)


@asynccontextmanager
async def _client(journal: StoredJournal, **rules: object) -> AsyncIterator[JournalClient]:
    fragments = DirectFragments(**{"roots": (journal.root,), "allow_http": True, **rules})  # type: ignore[arg-type]
    policy = TransportPolicy(fragments=fragments)
    async with (
        ScriptedBroker(on_read=journal.handler()) as broker,
        JournalClient(broker.address, policy=policy) as client,
    ):
        yield client


async def _read(client: JournalClient, offset: int = 0, end_offset: int = 0) -> bytes:
    spans: list[ReadSpan] = []
    async for span in client.reader(JOURNAL, offset=offset, end_offset=end_offset, block=False):
        assert span.offset == (spans[-1].end if spans else offset), "each byte once, in order"
        spans.append(span)
    return b"".join(span.content for span in spans)


@pytest.mark.parametrize("codec", CODECS)
async def test_files_are_read_without_the_broker(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """Each codec: whole, from the middle, to the middle; only what no store has comes from the broker."""
    journal = StoredJournal(tmp_path, codec)
    journal.store(_content(300_000))
    journal.store(_content(10, seed=2), postfix="year=2026/month=01")
    journal.keep(b"tail")
    whole = journal.content

    async with _client(journal) as client:
        everything = await _read(client)
        inner = await _read(client, 1000, 2_000)
        across = await _read(client, len(whole) - 40)
        totals = client.read_totals

    assert (everything, inner, across) == (whole, whole[1000:2000], whole[-40:])
    assert totals.broker_bytes == journal.broker_bytes == 2 * len(b"tail")
    assert totals.direct_bytes == len(whole) - 4 + 1000 + 36
    assert totals.failures == {}


@pytest.mark.parametrize("codec", CODECS)
async def test_urls_are_read_without_the_broker(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """The same over HTTP, with ranges of uncompressed objects."""
    journal = StoredJournal(tmp_path, codec)
    journal.store(_content(300_000))
    encoding = (
        [("Content-Encoding", "gzip")] if codec in (pb.GZIP, pb.GZIP_OFFLOAD_DECOMPRESSION) else []
    )
    whole = journal.content

    async with web_store(serving(tmp_path, encoding)) as address:
        journal.url = lambda path: f"{address}/{path}?signature=abc%2Fdef"
        async with _client(journal, roots=()) as client:
            everything = await _read(client)
            inner = await _read(client, 1000, 2_000)
            totals = client.read_totals

    assert (everything, inner) == (whole, whole[1000:2000])
    assert (totals.direct_bytes, totals.broker_bytes, totals.failures) == (len(whole) + 1000, 0, {})


async def test_a_listed_fragment_needs_no_request_to_the_broker(tmp_path: Path) -> None:
    """What a list with signed URLs covers is read without the broker; what it does not is asked for."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    journal.store(b"two\n")
    listed = journal.listed()
    journal.store(b"three\n")
    policy = TransportPolicy(fragments=DirectFragments(roots=(tmp_path,)))

    async with (
        ScriptedBroker(on_read=journal.handler()) as broker,
        JournalClient(broker.address, policy=policy) as client,
    ):
        reader = client.reader(JOURNAL, block=False, stored=listed)
        content = b"".join([span.content async for span in reader])

    assert content == b"one\ntwo\nthree\n"
    assert [request.offset for request in broker.read_requests] == [8, 14]


async def test_an_expired_list_is_replaced_by_urls_of_the_broker(tmp_path: Path) -> None:
    """A task of Spark may open its URLs late: then it asks the broker for new ones, and still reads directly."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    journal.store(b"two\n")
    files = serving(tmp_path)

    async def respond(request: web.Request) -> web.StreamResponse:
        if request.query["life"] == "old":
            raise web.HTTPForbidden
        return await files(request)

    async with web_store(respond) as address:
        journal.url = lambda path: f"{address}/{path}?life=old"
        listed = journal.listed()
        journal.url = lambda path: f"{address}/{path}?life=new"
        async with _client(journal) as client:
            reader = client.reader(JOURNAL, block=False, stored=listed)
            content = b"".join([span.content async for span in reader])
            totals = client.read_totals

    assert content == journal.content
    assert (totals.direct_bytes, totals.broker_bytes) == (8, 0)
    assert totals.failures == {"expired": 1}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fault", ["short", "long", "other"])
async def test_a_damaged_file_is_an_error_that_names_it(
    fault: str, codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """Missing, excess and wrong bytes: the error names journal, fragment and offsets."""
    content = _content(1000)
    journal = StoredJournal(tmp_path, codec)
    damaged = {
        "short": content[:-1],
        "long": content + b"!",
        "other": content[:500] + b"?" + content[501:],
    }
    journal.store(content, damaged=damaged[fault])

    async with _client(journal) as client:
        with pytest.raises(
            JournalDamagedError, match=rf"{JOURNAL}.*fragment \[0, {len(content)}\)"
        ):
            await _read(client)

    assert journal.broker_bytes == 0


async def test_a_damaged_uncompressed_file_is_not_used_at_all(tmp_path: Path) -> None:
    """It is verified before its first byte is delivered, however long it is."""
    content = _content(200_000)
    journal = StoredJournal(tmp_path)
    journal.store(content, damaged=content[:-1] + b"?")
    assert len(content) > 2 * PIECE_BYTES

    async with _client(journal) as client:
        reader = client.reader(JOURNAL, block=False)
        with pytest.raises(JournalDamagedError, match="SHA-1"):
            await anext(reader)
        await reader.aclose()


async def test_encoded_garbage_is_damage(tmp_path: Path) -> None:
    """Bytes that no codec made."""
    for codec in CODECS:
        journal = StoredJournal(tmp_path, codec)
        path = journal.store(b"content\n")
        path.write_bytes(b"\x00garbage")

        async with _client(journal) as client:
            with pytest.raises(JournalDamagedError, match=JOURNAL):
                await _read(client)


def _expired(request: web.Request) -> web.StreamResponse:
    raise web.HTTPForbidden


def _missing(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


def _failing(request: web.Request) -> web.StreamResponse:
    raise web.HTTPServiceUnavailable


def _redirecting(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(request.path_qs)


def _encoded_otherwise(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"one\n", headers={"Content-Encoding": "br"})


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (_expired, "expired"),
        (_missing, "missing"),
        (_failing, "failed"),
        (_redirecting, "refused"),
        (_encoded_otherwise, "failed"),
    ],
)
async def test_the_broker_delivers_what_a_store_does_not(
    respond: object, reason: str, tmp_path: Path
) -> None:
    """Refusals, errors, endless redirections: every byte arrives, through the broker, and is counted."""
    journal = StoredJournal(tmp_path)
    for content in (b"one\n", b"two\n", b"three\n"):
        journal.store(content)

    async def answer(request: web.Request) -> web.StreamResponse:
        return respond(request)  # type: ignore[operator,no-any-return]

    async with web_store(answer) as address:
        journal.url = lambda path: f"{address}/{path}"
        async with _client(journal) as client:
            content = await _read(client)
            totals = client.read_totals

    assert content == journal.content
    assert (totals.direct_bytes, totals.broker_bytes) == (0, len(content))
    assert list(totals.failures) == [reason]


async def test_a_broken_transfer_continues_at_the_broker(tmp_path: Path) -> None:
    """The store closes the connection within an object: the broker delivers from the first byte not delivered."""
    journal = StoredJournal(tmp_path)
    whole = _content(400_000)
    journal.store(whole)

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    async with web_store(respond) as address:
        journal.url = lambda path: f"{address}/{path}"
        async with _client(journal) as client:
            content = await _read(client)
            totals = client.read_totals

    assert content == whole
    assert totals.direct_bytes + totals.broker_bytes == len(whole)
    assert totals.failures == {"failed": 1}


async def test_a_store_that_cannot_be_reached_is_left_alone(tmp_path: Path) -> None:
    """Behind a firewall each attempt would take seconds: after the first, readers do not try for a while."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    async with web_store(serving(tmp_path)) as address:
        pass  # nobody listens there any more
    journal.url = lambda path: f"{address}/{path}"

    async with _client(journal) as client:
        contents = [await _read(client) for _ in range(3)]
        totals = client.read_totals

    assert contents == [b"one\n"] * 3
    assert totals.failures == {"failed": 1, "unreachable": 2}


async def test_brokers_without_the_journal_are_asked_to_proxy(tmp_path: Path) -> None:
    """A broker of a cluster that must not proxy refuses; one that may delivers everything."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    proxied = journal.handler()

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        if request.do_not_proxy:
            yield pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER, header=header())
            return
        async for response in proxied(request, context):
            yield response

    policy = TransportPolicy(fragments=DirectFragments(roots=(tmp_path,)))
    async with (
        ScriptedBroker(on_read=answer) as broker,
        JournalClient(broker.address, policy=policy) as client,
    ):
        content = await _read(client, end_offset=4)

    assert content == b"one\n"
    assert [request.do_not_proxy for request in broker.read_requests] == [True, False]


async def test_a_client_with_routes_goes_to_the_broker_that_serves_the_journal(
    tmp_path: Path,
) -> None:
    """The refusal of one broker names another; that one tells where the fragment is."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    policy = TransportPolicy(fragments=DirectFragments(roots=(tmp_path,)), route_cache_size=8)

    async with ScriptedBroker(on_read=journal.handler()) as serving_broker:
        route = pb.Route(
            primary=0,
            members=[pb.ProcessSpec.ID(zone="a", suffix="serving")],
            endpoints=[serving_broker.address],
        )

        async def answer(
            request: pb.ReadRequest, context: Context
        ) -> AsyncIterator[pb.ReadResponse]:
            told = header()
            told.route.CopyFrom(route)
            yield pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER, header=told)

        async with (
            ScriptedBroker(on_read=answer) as other_broker,
            JournalClient(other_broker.address, policy=policy) as client,
        ):
            content = await _read(client, end_offset=4)
            totals = client.read_totals

    assert content == b"one\n"
    assert (totals.direct_bytes, totals.broker_bytes) == (4, 0)
    assert len(other_broker.read_requests) == len(serving_broker.read_requests) == 1


async def test_stores_are_verified_and_never_left_for_clear_text(tmp_path: Path) -> None:
    """The system's authorities decide, or those of SSL_CERT_FILE; a redirection out of TLS is not followed."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    authority = CertificateAuthority(tmp_path)
    files = authority.certificate("store", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert_file, files.key_file)
    content = serving(tmp_path)

    async def respond(request: web.Request) -> web.StreamResponse:
        if request.query["to"] == "clear":
            raise web.HTTPFound(f"{clear}{request.path}")
        return await content(request)

    async with (
        web_store(content) as clear,
        web_store(respond, tls) as address,
        ScriptedBroker(on_read=journal.handler()) as broker,
    ):

        async def sent(to: str, trusted: str) -> int:
            """Return what the broker sends to a process that reads the journal."""
            journal.url = lambda path: f"{address}/{path}?to={to}"
            before = journal.broker_bytes
            words = ["journals", "read", JOURNAL, "--broker", broker.address, "--fragment-http"]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from broadsheet.cli.main import main; main()"),
                *words,
                env={**os.environ, "SSL_CERT_FILE": trusted},
                stdout=asyncio.subprocess.PIPE,
            )
            assert (await process.communicate())[0] == b"one\n"
            return journal.broker_bytes - before

        assert await sent("here", str(authority.ca_file)) == 0
        assert await sent("here", "") == 4
        assert await sent("clear", str(authority.ca_file)) == 4


async def test_a_silent_store_is_given_up(tmp_path: Path) -> None:
    """A store that begins to answer and stops: the broker delivers the rest."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    released = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "4"})
        await response.prepare(request)
        await response.write(b"o")
        await released.wait()
        return response

    async with web_store(respond) as address:
        journal.url = lambda path: f"{address}/{path}"
        async with _client(journal, silence_seconds=0.2) as client:
            content = await _read(client)
            totals = client.read_totals
        released.set()

    assert (content, totals.failures) == (b"one\n", {"failed": 1})


async def test_wrong_objects_of_a_store_are_damage(tmp_path: Path) -> None:
    """Another length, and another content of the same length."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")

    for body in (b"one\nmore", b"o", b"two\n"):

        async def respond(request: web.Request, body: bytes = body) -> web.StreamResponse:
            return web.Response(body=body)

        async with web_store(respond) as address:
            journal.url = lambda path, address=address: f"{address}/{path}"
            async with _client(journal) as client:
                with pytest.raises(JournalDamagedError, match=r"fragment \[0, 4\)"):
                    await _read(client)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "file://elsewhere{root}/{path}",
        "file://{root}/../{name}/{path}",
        "file://{root}/%2e%2e/{name}/{path}",
        "file://{root}/other/{path}.raw",
        "file://{root}/tests/others/{base}",
        "ftp://127.0.0.1/{path}",
        "http://user:word@127.0.0.1:1/{path}",
        "http://127.0.0.1:1/{path}",
        "https://127.0.0.1:1/{path}?signature=secret",
    ],
)
async def test_urls_that_lead_elsewhere_are_never_opened(url: str, tmp_path: Path) -> None:
    """A broker's word opens no other file and no other kind of URL; the broker delivers the bytes instead."""
    root = tmp_path / "root"
    journal = StoredJournal(root)
    path = journal.store(b"one\n")
    others = root / "tests/others"
    others.mkdir()
    (others / path.name).write_bytes(b"two\n")
    journal.url = lambda path: url.format(
        root=root, name=root.name, path=path, base=Path(path).name
    )

    async with _client(journal, allow_http=False) as client:
        with capture_logs() as logs:
            content = await _read(client)
            totals = client.read_totals

    assert (content, totals.direct_bytes) == (b"one\n", 0)
    assert "read.direct_failed" in [log["event"] for log in logs]
    assert "signature" not in str(logs), "whoever has the URL may read the fragment"
    assert totals.failures in ({"refused": 1}, {"failed": 1}, {"missing": 1})


async def test_links_and_pipes_below_a_root_are_not_followed(tmp_path: Path) -> None:
    """Whoever may write below the root could otherwise have any file read, or a reader wait for ever."""
    root = tmp_path / "root"
    secret = tmp_path / "secret"
    for make in (lambda path: path.symlink_to(secret), os.mkfifo):
        journal = StoredJournal(root)
        path = journal.store(b"one\n")
        path.rename(secret)
        make(path)

        async with _client(journal) as client:
            assert await _read(client) == b"one\n"
            assert client.read_totals.failures == {"missing": 1}
        path.unlink()


async def test_paths_below_the_root_are_understood(tmp_path: Path) -> None:
    """Gazette's URLs of files have the path below its root, not that of the machine."""
    journal = StoredJournal(tmp_path / "store")
    journal.store(b"one\n")
    journal.url = lambda path: f"file:///store/{path}"

    async with _client(journal, roots=(tmp_path,)) as client:
        assert await _read(client) == b"one\n"
        assert client.read_totals.direct_bytes == 4


async def test_direct_reading_can_be_turned_off(tmp_path: Path) -> None:
    """Then brokers deliver everything, as before."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")

    async with _client(journal, enabled=False) as client:
        assert await _read(client) == b"one\n"
        assert (client.read_totals.direct_bytes, client.read_totals.broker_bytes) == (0, 4)


async def test_credentials_and_cookies_stay_here(tmp_path: Path) -> None:
    """A store gets the URL and nothing that identifies the client, whatever it sent before."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")
    journal.store(b"two\n")
    shown: list[set[str]] = []
    files = serving(tmp_path, [("Set-Cookie", "a=b")])

    async def respond(request: web.Request) -> web.StreamResponse:
        shown.append(set(request.headers))
        return await files(request)

    async with web_store(respond) as address:
        journal.url = lambda path: f"{address}/{path}"
        async with _client(journal) as client:
            await _read(client)

    assert shown == [{"Host", "Accept", "Accept-Encoding"}] * 2


@pytest.mark.parametrize("codec", [pb.NONE, pb.GZIP, pb.ZSTANDARD, pb.SNAPPY])
async def test_history_costs_the_broker_no_content(
    codec: pb.CompressionCodec.ValueType, tmp_path: Path
) -> None:
    """The embedded broker publishes its fragments; readers get the same bytes from it and without it."""
    spec = journal_spec(JOURNAL, length=1024)
    spec.fragment.compression_codec = codec
    spec.fragment.stores.append("file:///store/")
    root = tmp_path / "root"
    root.mkdir()
    config = BrokerConfig(data_dir=tmp_path / "broker", file_root=root)
    policy = TransportPolicy(fragments=DirectFragments(roots=(root,)))
    async with (
        Broker(config) as broker,
        JournalClient(broker.address) as plain,
        JournalClient(broker.address, policy=policy) as client,
    ):
        await plain.apply([pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])
        for seed in range(3):
            await plain.append(JOURNAL, _content(1000, seed=seed))
        await eventually(lambda: _stored(plain, count=2))

        through_the_broker = await _read(plain)
        direct = await _read(client)
        tail = (await plain.list_fragments(JOURNAL))[-1].spec

    assert direct == through_the_broker
    assert plain.read_totals.direct_bytes == 0
    assert client.read_totals.broker_bytes == tail.end - tail.begin
    assert client.read_totals.direct_bytes == tail.begin


async def _stored(client: JournalClient, *, count: int) -> bool:
    fragments = await client.list_fragments(JOURNAL)
    return sum(bool(each.spec.backing_store) for each in fragments) == count


async def test_shardctl_reads_a_store(tmp_path: Path) -> None:
    """`journals read` with the store's directory gets nothing from the broker, and without it everything."""
    journal = StoredJournal(tmp_path)
    journal.store(b"one\n")

    async with ScriptedBroker(on_read=journal.handler()) as broker:

        async def read(*options: str) -> str:
            arguments = ["journals", "read", JOURNAL, "--broker", broker.address, *options]
            return (await asyncio.to_thread(CliRunner().invoke, main, arguments)).stdout

        direct = await read("--fragment-root", str(tmp_path))
        sent = journal.broker_bytes
        through = await read("--fragment-root", str(tmp_path), "--direct-fragments", "off")

    assert (direct, sent) == ("one\n", 0)
    assert (through, journal.broker_bytes) == ("one\n", 4)


async def test_a_cancelled_read_loses_nothing(tmp_path: Path) -> None:
    """A reader whose wait is cut short again and again still delivers each byte once, in order."""
    journal = StoredJournal(tmp_path, pb.GZIP)
    journal.store(_content(200_000))

    async with _client(journal) as client, client.reader(JOURNAL, block=False) as reader:
        content = (await anext(reader)).content
        while len(content) < journal.head:
            try:
                async with asyncio.timeout(0):
                    content += (await anext(reader)).content
            except TimeoutError:
                await asyncio.sleep(0)

    assert content == journal.content
