"""Fragment stores: what the URLs of a journal's spec mean here, and operations on the objects there. Blocking.

    file:///path/       PATH below the broker's file root
    s3://bucket/path/   an object store that the broker's options permit; gs:// and azure://, too

An object has its final name only once it is complete. Names of journals come from clients, so a path never leads out of
its store: segments of dots are refused, and below a file root no symbolic link is followed.

Source: gazette/core broker/stores/fs/store.go (layout), fragment/stores.go (health probes).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from broadsheet.broker.fragment_codecs import PIECE_BYTES, encode_file
from broadsheet.broker.fragments import SealedFragment
from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.security.secret_url import SecretUrl
from broadsheet.wire.journal_pb2 import CompressionCodec
from broadsheet.wire.validation_journal_spec import validate_store

PROBE_KEY = ".test/health-check"
DELETE_PROBE = ".gazette-delete-probe"
_PROBE = b"broadsheet broker health probe\n"
REQUEST_TIMEOUT = timedelta(minutes=5)
"""Of one request, with its content. Source: gazette/core broker/fragment/stores.go."""
RETRY_TIMEOUT = timedelta(seconds=30)
"""Of the library's own retries; later ones are the publisher's."""
ERROR_CHARACTERS_MAX = 500
_AZURE_AD = "azure-ad"
_PARTIAL_PREFIX = ".partial-"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class StoredObject(NamedTuple):
    """An object of a listing."""

    key: str
    """Path below the store."""
    mod_time: int
    """Unix seconds."""


class FragmentStore(Protocol):
    """Objects below one URL. Its methods block, and raise OSError if the store fails."""

    signs_locally: bool
    """True if `sign` neither blocks nor computes much."""

    def put(self, key: str, fragment: SealedFragment, codec: int) -> int:
        """Store a fragment's content, compressed, unless it is there; return the object's time, Unix seconds."""
        ...

    def put_bytes(self, key: str, content: bytes) -> None:
        """Store a small object."""
        ...

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError if there is none."""
        ...

    def listing(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a path that ends in `/`."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def sign(self, keys: Sequence[str], seconds: int) -> list[str]:
        """Return URLs under which anybody can get the objects for a while; empty for one that cannot be signed."""
        ...


def path_parts(path: str) -> tuple[str, ...]:
    """Return the segments of a path below a store.

    Raises:
        ValidationError: a segment is empty or consists of dots, or has a character that no file name may have.
    """
    parts = tuple(path.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise ValidationError("path", f"expected names between slashes, got {path!r}")
    return parts


class FileStore:
    """Store in a directory of this machine."""

    signs_locally = True

    def __init__(self, root: Path, path: str) -> None:
        """Name the directory; nothing is opened yet.

        Args:
            root: Root of all file stores. It may be reached by symbolic links; below it none is followed.
            path: Path of the store below it, which begins and ends with `/`.

        Raises:
            ValidationError: the path would lead elsewhere.
        """
        self._root = root
        inner = path.strip("/")
        self._parts = path_parts(inner) if inner else ()

    def put(self, key: str, fragment: SealedFragment, codec: int) -> int:
        """Write the fragment's content to a file; see `FragmentStore`.

        Not a link of the fragment's file, nor a clone of its blocks: a bad sector must not ruin both copies.
        """
        *parents, name = path_parts(key)
        with self._directory(parents, creates=True) as fd:
            with contextlib.suppress(FileNotFoundError):
                found = _regular(name, fd)
                is_whole = codec != CompressionCodec.NONE or _is_as_long(found, fragment)
                # A file with two names is a link that an earlier version made.
                if is_whole and found.st_nlink == 1:
                    return int(found.st_mtime)
            with _new_file(name, fd) as target:
                encode_file(fragment, target, codec)
            os.fsync(fd)
            return int(_regular(name, fd).st_mtime)

    def put_bytes(self, key: str, content: bytes) -> None:
        """Write a small file; see `FragmentStore`."""
        *parents, name = path_parts(key)
        with self._directory(parents, creates=True) as fd:
            with _new_file(name, fd) as target:
                target.write(content)
            os.fsync(fd)

    def pieces(self, key: str) -> Iterator[bytes]:
        """Read a file; see `FragmentStore`."""
        *parents, name = path_parts(key)
        with self._directory(parents) as directory:
            # Not blocking, because a stranger's pipe would be waited for; content of files is read all the same.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(name, flags, dir_fd=directory)
        with os.fdopen(fd, "rb", buffering=0) as source:
            _require_regular(os.fstat(fd), key)
            while piece := source.read(PIECE_BYTES):
                yield piece

    def listing(self, prefix: str) -> Iterator[StoredObject]:
        """Walk a directory; see `FragmentStore`."""
        inner = prefix.removesuffix("/")
        try:
            with self._directory(path_parts(inner) if inner else ()) as fd:
                yield from self._walk(fd, prefix)
        except OSError as error:
            # A name that is too long for the file system was never published.
            if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                raise

    def _walk(self, fd: int, prefix: str) -> Iterator[StoredObject]:
        for where, _, names, inner_fd in os.fwalk(".", dir_fd=fd, onerror=_raise):
            base = prefix + where.removeprefix(".").removeprefix("/")
            base = f"{base}/" if base and not base.endswith("/") else base
            for name in names:
                found = os.stat(name, dir_fd=inner_fd, follow_symlinks=False)
                # Dots begin the names of files that are still being written.
                if stat.S_ISREG(found.st_mode) and not name.startswith("."):
                    yield StoredObject(base + name, int(found.st_mtime))

    def remove(self, key: str) -> None:
        """Unlink a file; see `FragmentStore`."""
        *parents, name = path_parts(key)
        with contextlib.suppress(FileNotFoundError), self._directory(parents) as fd:
            os.unlink(name, dir_fd=fd)
            os.fsync(fd)

    def sign(self, keys: Sequence[str], seconds: int) -> list[str]:
        """Return plain URLs of files; see `FragmentStore`."""
        del seconds
        return [self._root.joinpath(*self._parts, *path_parts(key)).as_uri() for key in keys]

    @contextmanager
    def _directory(self, parents: Sequence[str], *, creates: bool = False) -> Iterator[int]:
        """Yield a descriptor of a directory below the store, reached without symbolic links."""
        fd = os.open(self._root, _OPEN_DIRECTORY)
        try:
            for part in (*self._parts, *parents):
                if creates:
                    _make_directory(part, fd)
                inner = _open_inner(part, fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)


def _open_inner(name: str, parent: int) -> int:
    try:
        return os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        problem = f"{name} below the file root is no directory; symbolic links are not followed"
        raise OSError(error.errno, problem) from error


def _raise(error: OSError) -> None:
    raise error


def _make_directory(name: str, parent: int) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return
    os.fsync(parent)


def _regular(name: str, directory: int) -> os.stat_result:
    """Return the status of a file, which must be neither a link nor a directory."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    _require_regular(found, name)
    return found


def _require_regular(found: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ELOOP, f"{name} is no regular file")


def _is_as_long(found: os.stat_result, fragment: SealedFragment) -> bool:
    return found.st_size == fragment.end - fragment.begin


@contextmanager
def _new_file(name: str, directory: int) -> Iterator[IO[bytes]]:
    """Yield a file to write, which gets its name durably at the end of the block; a failed one is removed."""
    partial = _PARTIAL_PREFIX + name
    # Removed first, because an interrupted writer may have left one, or another may be writing it.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(partial, flags, 0o600, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb") as target:
            yield target
            target.flush()
            os.fsync(fd)
        os.replace(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=directory)
        raise


class CloudStore:
    """Store in S3, Google Cloud Storage or Azure Blob Storage."""

    signs_locally = False

    def __init__(self, objects: Any, path: str) -> None:
        """Name the store.

        Args:
            objects: Store of `obstore` for the whole bucket. `Any`, because that library is optional.
            path: Path of the store in the bucket, which begins and ends with `/`.

        Raises:
            ValidationError: the path would lead elsewhere.
        """
        self._library = import_obstore()
        self._objects = objects
        inner = path.strip("/")
        self._prefix = "/".join(path_parts(inner)) + "/" if inner else ""

    def put(self, key: str, fragment: SealedFragment, codec: int) -> int:
        """Upload the fragment's content; see `FragmentStore`."""
        path = self._path(key)
        with self._errors(), contextlib.suppress(FileNotFoundError):
            found = self._library.head(self._objects, path)
            if codec != CompressionCodec.NONE or found["size"] == fragment.end - fragment.begin:
                return int(found["last_modified"].timestamp())
        offloads = codec == CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        attributes = {"Content-Encoding": "gzip"} if offloads else {}
        # Verified before anything is uploaded, because an upload appears under its final name.
        with tempfile.TemporaryFile(dir=fragment.path.parent) as encoded:
            encode_file(fragment, encoded, codec)
            encoded.seek(0)
            with self._errors():
                self._library.put(self._objects, path, encoded, attributes=attributes)
                found = self._library.head(self._objects, path)
        return int(found["last_modified"].timestamp())

    def put_bytes(self, key: str, content: bytes) -> None:
        """Upload a small object; see `FragmentStore`."""
        with self._errors():
            self._library.put(self._objects, self._path(key), content)

    def pieces(self, key: str) -> Iterator[bytes]:
        """Download an object; see `FragmentStore`."""
        with self._errors():
            stream = self._library.get(self._objects, self._path(key)).stream(
                min_chunk_size=PIECE_BYTES
            )
            for piece in stream:
                yield bytes(piece)

    def listing(self, prefix: str) -> Iterator[StoredObject]:
        """List objects; see `FragmentStore`."""
        with self._errors():
            for page in self._library.list(self._objects, self._prefix + prefix):
                for each in page:
                    key = each["path"].removeprefix(self._prefix)
                    yield StoredObject(key, int(each["last_modified"].timestamp()))

    def remove(self, key: str) -> None:
        """Delete an object; see `FragmentStore`."""
        with self._errors(), contextlib.suppress(FileNotFoundError):
            self._library.delete(self._objects, self._path(key))

    def sign(self, keys: Sequence[str], seconds: int) -> list[str]:
        """Return signed URLs; see `FragmentStore`."""
        paths = [self._path(key) for key in keys]
        with self._errors():
            urls = self._library.sign(self._objects, "GET", paths, timedelta(seconds=seconds))
        if not isinstance(self._objects, self._library.store.AzureStore):
            return list(urls)
        # The library signs the path as it is in the URL, and Azure verifies the decoded one (obstore 0.12.1).
        return ["" if "%" in urlsplit(url).path else url for url in urls]

    def _path(self, key: str) -> str:
        return self._prefix + "/".join(path_parts(key))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the library's errors as OSError, without their internals."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, _text_of(error)) from error
        except (self._library.exceptions.BaseError, OSError) as error:
            raise OSError(errno.EIO, f"the store failed: {_text_of(error)}") from error


def _text_of(error: BaseException) -> str:
    """Return an error's text in one line, without the library's internals."""
    return " ".join(str(error).partition("Debug source")[0].split())[:ERROR_CHARACTERS_MAX]


# `Any`, because the library is optional.
def import_obstore() -> Any:
    """Return the library for clouds.

    Raises:
        ExtraMissingError: it is not installed.
    """
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise ExtraMissingError("a cloud store", "stores", "obstore", module="obstore") from error
    return obstore


@dataclass(frozen=True, slots=True)
class _Permitted:
    """Store that the operator permits, with all stores below it."""

    url: SplitResult
    objects: Any
    """Store of the library. `Any`, because that is optional."""

    def contains(self, url: SplitResult) -> bool:
        """Tell whether a store is this one or below it. Queries choose endpoints, so they are the operator's."""
        return (
            (url.scheme, url.netloc) == (self.url.scheme, self.url.netloc)
            and url.query in ("", self.url.query)
            and url.path.startswith(self.url.path)
        )

    def path_of(self, url: SplitResult) -> str:
        """Return the path of a store in its bucket."""
        path = unquote(url.path)
        if url.scheme == _AZURE_AD:
            # The account and the container come first.
            return "/" + "/".join(path.split("/")[3:])
        return path


def _permitted(store: SecretUrl) -> _Permitted:
    """Return a permitted store, opened.

    Raises:
        ValidationError: the URL is malformed.
        ExtraMissingError: the library is not installed.
    """
    url = store.reveal()
    try:
        validate_store(url, "cloud_stores")
    except ValidationError as error:
        raise ValidationError(error.field_path, store.hidden_in(error.problem)) from None
    parsed = urlsplit(url)
    library, config = import_obstore(), dict(parse_qsl(parsed.query))
    bucket = f"{parsed.scheme}://{parsed.netloc}"
    if parsed.scheme == _AZURE_AD:
        _, account, container, *_ = parsed.path.split("/")
        bucket = f"azure://{container}"
        config |= {"tenant_id": parsed.netloc, "account_name": account}
    elif parsed.scheme == "file":
        raise ValidationError(
            "cloud_stores", f"expected s3, gs or azure, got {store.shown!r}: set file_root"
        )
    plain = config.get("endpoint", "").startswith("http://")
    try:
        objects = library.store.from_url(
            bucket,
            config=config,
            client_options={"timeout": REQUEST_TIMEOUT, "allow_http": plain},
            retry_config={"max_retries": 3, "retry_timeout": RETRY_TIMEOUT},
        )
    except library.exceptions.BaseError as error:
        cause = store.hidden_in(_text_of(error))
        raise ValidationError("cloud_stores", f"{store}: {cause}") from None
    return _Permitted(parsed, objects)


class FragmentStores:
    """Stores that a broker serves, by URL."""

    def __init__(
        self, file_root: Path | None, cloud_stores: Sequence[str | SecretUrl] = ()
    ) -> None:
        """Check the settings.

        Args:
            file_root: Root of file stores; None serves none.
            cloud_stores: URLs of stores in clouds; stores below them are served, too. Queries are settings of
                `obstore`, such as `?endpoint=…&region=…`.

        Raises:
            ValidationError: the root is no directory, or a URL is malformed.
            ExtraMissingError: the library for clouds is not installed.
        """
        if file_root is not None and not file_root.is_dir():
            raise ValidationError("file_root", f"expected an existing directory, got {file_root}")
        self._file_root = None if file_root is None else file_root.resolve()
        self._permitted = [_permitted(SecretUrl.of(url)) for url in cloud_stores]

    @property
    def is_any(self) -> bool:
        """True if the broker serves stores at all."""
        return self._file_root is not None or bool(self._permitted)

    def at(self, url: str) -> FragmentStore | None:
        """Return the store at a URL; None if this broker does not serve it.

        Raises:
            ValidationError: its path would lead elsewhere.
        """
        parsed = urlsplit(url)
        if parsed.scheme == "file" and self._file_root is not None:
            return FileStore(self._file_root, unquote(parsed.path))
        permitted = self._permitting(parsed)
        return (
            None if permitted is None else CloudStore(permitted.objects, permitted.path_of(parsed))
        )

    def first_of(self, urls: Sequence[str]) -> str:
        """Return the store of a spec that new fragments go to, which is its first; empty if it is not served here."""
        # A path that leads elsewhere fails at its use, with a reason for the operator.
        return urls[0] if urls and self._serves(urlsplit(urls[0])) else ""

    def _serves(self, url: SplitResult) -> bool:
        is_file = url.scheme == "file" and self._file_root is not None
        return is_file or self._permitting(url) is not None

    def _permitting(self, url: SplitResult) -> _Permitted | None:
        return next((each for each in self._permitted if each.contains(url)), None)


def probe(store: FragmentStore, delete_prefix: str | None) -> None:
    """Write, read and list an object, and remove another one if a prefix is given.

    Raises:
        OSError: the store failed, or reads back differently.
    """
    store.put_bytes(PROBE_KEY, _PROBE)
    if b"".join(store.pieces(PROBE_KEY)) != _PROBE:
        raise OSError(errno.EIO, f"{PROBE_KEY} reads back differently from what was written")
    folder = PROBE_KEY.rpartition("/")[0] + "/"
    if PROBE_KEY not in (each.key for each in store.listing(folder)):
        raise OSError(errno.EIO, f"{PROBE_KEY} was written, but is not listed")
    if delete_prefix is not None:
        store.put_bytes(delete_prefix + DELETE_PROBE, _PROBE)
        store.remove(delete_prefix + DELETE_PROBE)
