"""Opens a client of the brokers that the options of format `journal` name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broadsheet.journals.client import JournalClient
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.transport import CHUNK_BYTES, TransportPolicy
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import KeyedAuth, keys_from
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.options import Access

RESTART_SECONDS: Final = 60.0
"""Patience of queries and tasks, which a broker's restart must not end: it replays what was not sealed."""


def open_client(
    access: Access,
    *,
    patience_seconds: float = RESTART_SECONDS,
    chunk_bytes: int = CHUNK_BYTES,
    whole_bytes_max: int | None = None,
    verify_first: bool = True,
) -> JournalClient:
    """Return a client, not entered yet.

    Args:
        access: Of the brokers.
        patience_seconds: Time for which a broker that cannot be reached is asked again.
        chunk_bytes: Of long appends; see `TransportPolicy`.
        whole_bytes_max: Of appends in one message, by the same rule.
        verify_first: Whether stored files are verified before they are used; see `DirectFragments`.

    Raises:
        OptionError: a file that the options name cannot be read, or the address is malformed.
    """
    auth = None
    if access.auth_keys_file is not None:
        try:
            auth = KeyedAuth(keys_from("", Path(access.auth_keys_file)))
        except ValidationError as error:
            expected = f"a file with keys, readable on the driver and on executors ({error})"
            raise OptionError("authKeysFile", expected, got=access.auth_keys_file) from error
    return JournalClient(
        access.address,
        auth=auth,
        policy=TransportPolicy(
            zone=access.zone,
            patience_seconds=patience_seconds,
            tls=access.tls.config(),
            chunk_bytes=chunk_bytes,
            whole_bytes_max=whole_bytes_max,
            fragments=DirectFragments(
                enabled=access.fragments.enabled,
                roots=tuple(map(Path, access.fragments.roots)),
                allow_http=access.fragments.allow_http,
                verify_first=verify_first,
            ),
        ),
    )
