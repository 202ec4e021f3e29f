"""A scan as bytes of one Arrow stream, made on a thread of its own, a part ahead of whoever takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from consumer.errors import (
    ShardStoppedError,
    StateNotShownError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from consumer.protocol.shard_pb2 import Checkpoint
from consumer.state_tables import ScannableStore

PART_BYTES: Final = 1 << 20
"""Of one message, well below what gRPC takes by default."""
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Of a stream in Arrow's IPC format."""
_DONE: Final = object()

Part = Checkpoint | bytes


async def scan_parts(
    store: ScannableStore,
    table: str,
    columns: Sequence[str],
    *,
    shard_id: str,
    ended: asyncio.Future[Any],
) -> AsyncGenerator[Part, None]:
    """Yield the checkpoint that the rows are of, then the bytes of a stream, part by part.

    Args:
        store: Not destroyed meanwhile.
        table: Of the store; empty: its only one.
        columns: Of the table; none: all.
        shard_id: For errors.
        ended: Resolves when the store is wanted back.

    Raises:
        ShardStoppedError: it was wanted back, or the scan was ended for taking too long.
        StateNotShownError: a value is none that its column can show.
        ValidationError: there is no such table or column.
    """
    parts = _parts(store, table, columns)
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"scan {shard_id}")
    step = loop.run_in_executor(thread, next, parts, _DONE)
    try:
        while True:
            await asyncio.wait((step, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ShardStoppedError(shard_id, detail="it stopped while it was being read")
            part = step.result()
            if part is _DONE:
                return
            assert isinstance(part, Checkpoint | bytes), "as `_parts` yields"
            step = loop.run_in_executor(thread, next, parts, _DONE)
            yield part
    except (StoreClosedError, StoreUnavailableError) as error:
        raise ShardStoppedError(shard_id, detail=error.detail) from error
    except StoreError as error:
        raise StateNotShownError(shard_id, error.detail) from error
    except ImportError as error:
        raise StateNotShownError(shard_id, lacking(error)) from error
    finally:
        # Behind a step that still runs, and on its thread; nobody is left to be told what it met.
        step.add_done_callback(lambda done: done.cancelled() or done.exception())
        closing = loop.run_in_executor(thread, parts.close)
        thread.shutdown(wait=False)
        await asyncio.shield(closing)


def lacking(error: ImportError) -> str:
    """Return what to say of a member that has no pyarrow."""
    return f"its member lacks {error.name}: install broadsheet[spark] there"


def _parts(
    store: ScannableStore, table: str, columns: Sequence[str]
) -> Generator[Part, None, None]:
    with store.scan(table or _only(store), columns) as scan:
        yield scan.checkpoint
        yield scan.schema.serialize().to_pybytes()
        for batch in scan.batches:
            encoded = memoryview(batch.serialize())
            for begin in range(0, len(encoded), PART_BYTES):
                yield bytes(encoded[begin : begin + PART_BYTES])
    yield _END


def _only(store: ScannableStore) -> str:
    """Return the name of a store's only table; that of none, if there are several, for `scan` to refuse."""
    tables = list(store.tables())
    return tables[0] if len(tables) == 1 else ""
