"""A moto server that answers one request at a time: run as a process of its own.

DynamoDB changes an item atomically. Threads of moto's may meet between the look at an item and its change, and then two
of them find their condition true.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_answering = threading.Lock()


def patch() -> None:
    """Put a lock around every answer."""
    answer = DomainDispatcherApplication.__call__

    # Any: a WSGI application's.
    def one_at_a_time(self: Any, environ: Any, start_response: Any) -> Any:
        with _answering:
            return answer(self, environ, start_response)

    DomainDispatcherApplication.__call__ = one_at_a_time  # type: ignore[method-assign]


if __name__ == "__main__":
    patch()
    main(sys.argv[1:])
