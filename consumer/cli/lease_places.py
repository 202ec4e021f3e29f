"""What the `leases` commands are pointed at: stores, and files of exports."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from allocator.errors import ValidationError
from consumer.leasing.addresses import is_store_address, parse_store_address
from consumer.leasing.core.record import LeaseRecord
from consumer.leasing.migration.carrying_out import records_of
from consumer.leasing.migration.export_file import read_export
from consumer.leasing.opening import missing_file, open_store
from consumer.leasing.store import RecordStore


@asynccontextmanager
async def existing_store(text: str) -> AsyncIterator[RecordStore]:
    """Open the store of an address, which must be there.

    Raises:
        ValidationError: the text is no address, or there is no such store.
    """
    address = parse_store_address(text)
    path = missing_file(address)
    if path is not None:
        raise ValidationError("store", f"{address.text}: there is no file {path}")
    async with open_store(address) as store:
        if not await store.exists():
            raise ValidationError("store", f"{address.text}: there is no such store")
        yield store


async def records_from(text: str) -> tuple[LeaseRecord, ...]:
    """Return the records of a store, or of a file; `-` is standard input.

    Raises:
        ValidationError: there is neither, or the file cannot be read.
    """
    if is_store_address(text):
        async with existing_store(text) as store:
            return tuple(found.record for found in await records_of(store))
    return _records_in(text)


def _records_in(text: str) -> tuple[LeaseRecord, ...]:
    name = "standard input" if text == "-" else text
    try:
        content = sys.stdin.read() if text == "-" else Path(text).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValidationError(
            "from", f"{text} is no file, and no store (shardctl leases --help shows addresses)"
        ) from error
    except OSError as error:
        raise ValidationError("from", f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError("from", f"{name} is not UTF-8 text") from error
    return read_export(content, name)
