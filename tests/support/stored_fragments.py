"""Fragments in a store that tests write themselves, a broker that tells where they are, and a web server of them."""

from __future__ import annotations

import gzip
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cramjam
import zstandard
from aiohttp import web

from broadsheet.wire import journal_pb2 as pb
from tests.support.scripted_broker import Context, ReadHandler, header

JOURNAL = "tests/stored"
ENCODERS: dict[pb.CompressionCodec.ValueType, Callable[[bytes], bytes]] = {
    pb.NONE: lambda content: content,
    pb.GZIP: gzip.compress,
    pb.ZSTANDARD: lambda content: zstandard.ZstdCompressor().compress(content),
    pb.SNAPPY: lambda content: bytes(cramjam.snappy.compress(content)),
    pb.GZIP_OFFLOAD_DECOMPRESSION: gzip.compress,
}
EXTENSIONS = {
    pb.NONE: ".raw",
    pb.GZIP: ".gz",
    pb.ZSTANDARD: ".zst",
    pb.SNAPPY: ".sz",
    pb.GZIP_OFFLOAD_DECOMPRESSION: "",
}


def stored_fragment(
    begin: int, content: bytes, codec: pb.CompressionCodec.ValueType = pb.NONE, postfix: str = ""
) -> pb.Fragment:
    """Return the description of a stored fragment."""
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return pb.Fragment(
        journal=JOURNAL,
        begin=begin,
        end=begin + len(content),
        sum=pb.SHA1Sum(
            part1=int.from_bytes(digest[:8], "big"),
            part2=int.from_bytes(digest[8:16], "big"),
            part3=int.from_bytes(digest[16:], "big"),
        ),
        compression_codec=codec,
        backing_store="file:///",
        mod_time=1_700_000_000,
        path_postfix=postfix,
    )


def object_path(fragment: pb.Fragment) -> str:
    """Return the path of a fragment's object below its store."""
    total = fragment.sum
    digest = f"{total.part1:016x}{total.part2:016x}{total.part3:08x}"
    name = f"{fragment.begin:016x}-{fragment.end:016x}-{digest}"
    parts = [fragment.journal, fragment.path_postfix, name + EXTENSIONS[fragment.compression_codec]]
    return "/".join(part for part in parts if part)


@dataclass(slots=True)
class StoredJournal:
    """A journal whose fragments are in a store but for the last ones, which only its broker has."""

    root: Path
    codec: pb.CompressionCodec.ValueType = pb.NONE
    url: Callable[[str], str] | None = None
    """From an object's path to its URL; that of a file by default."""
    fragments: list[tuple[pb.Fragment, bytes]] = field(default_factory=list)
    broker_bytes: int = 0
    """Content that the broker delivered."""

    @property
    def content(self) -> bytes:
        """Return all bytes of the journal."""
        return b"".join(content for _, content in self.fragments)

    @property
    def head(self) -> int:
        """Return the write head."""
        return self.fragments[-1][0].end

    def store(self, content: bytes, *, postfix: str = "", damaged: bytes | None = None) -> Path:
        """Add a stored fragment; return its file, which has other content if it is damaged."""
        begin = self.head if self.fragments else 0
        fragment = stored_fragment(begin, content, self.codec, postfix)
        self.fragments.append((fragment, content))
        path = self.root / object_path(fragment)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ENCODERS[self.codec](content if damaged is None else damaged))
        return path

    def keep(self, content: bytes) -> None:
        """Add a fragment that only the broker has."""
        fragment = stored_fragment(self.head if self.fragments else 0, content)
        fragment.backing_store, fragment.mod_time = "", 0
        self.fragments.append((fragment, content))

    def url_of(self, fragment: pb.Fragment) -> str:
        """Return where a stored fragment is."""
        if not fragment.mod_time:
            return ""
        path = object_path(fragment)
        return self.url(path) if self.url else (self.root / path).as_uri()

    def listed(self) -> list[pb.FragmentsResponse.ListedFragment]:
        """Return what ListFragments with a signature tells."""
        return [
            pb.FragmentsResponse.ListedFragment(spec=each, signed_url=self.url_of(each))
            for each, _ in self.fragments
        ]

    def handler(self) -> ReadHandler:
        """Return the journal's side of reads, as a broker of Gazette has it."""

        async def answer(
            request: pb.ReadRequest, context: Context
        ) -> AsyncIterator[pb.ReadResponse]:
            del context
            offset = request.offset
            for fragment, content in self.fragments:
                if not fragment.begin <= offset < fragment.end:
                    continue
                yield pb.ReadResponse(
                    header=header(),
                    offset=offset,
                    write_head=self.head,
                    fragment=fragment,
                    fragment_url=self.url_of(fragment),
                )
                if fragment.mod_time and request.do_not_proxy:
                    return
                end = min(fragment.end, request.end_offset or fragment.end)
                piece = content[offset - fragment.begin : end - fragment.begin]
                self.broker_bytes += len(piece)
                yield pb.ReadResponse(offset=offset, content=piece)
                offset = end
                if request.end_offset and offset >= request.end_offset:
                    return
            yield pb.ReadResponse(
                status=pb.OFFSET_NOT_YET_AVAILABLE,
                header=header(),
                offset=offset,
                write_head=self.head,
            )

        return answer


Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def web_store(respond: Respond, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yield the address of a web server whose answers the test writes."""
    application = web.Application()
    application.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{'https' if tls else 'http'}://{host}:{port}"
    finally:
        await runner.cleanup()


def serving(root: Path, headers: Sequence[tuple[str, str]] = ()) -> Respond:
    """Return answers with the files of a directory, ranges included."""

    async def respond(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(root / request.match_info["path"], headers=dict(headers))

    return respond
