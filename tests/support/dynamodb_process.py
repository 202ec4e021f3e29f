"""A moto server that answers requests one after another, and remembers what it looks up: run as a process of its own.

DynamoDB changes an item atomically. Threads of moto's may meet between the look at an item and its change, and then two
of them find their condition true. In the order in which requests came: a lock would let some of them starve.

Of what an update of an item takes, moto spends much on finding out the same again: which services there are, on disk;
what methods a class has; what the text of an expression means. None of that changes while it runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main
from werkzeug.serving import WSGIRequestHandler

_answering = ThreadPoolExecutor(1, thread_name_prefix="answers")


def answer_in_order() -> None:
    """Let one thread make all answers."""
    answer = DomainDispatcherApplication.__call__

    # Any: a WSGI application's.
    def in_order(self: Any, environ: Any, start_response: Any) -> Any:
        return _answering.submit(answer, self, environ, start_response).result()

    DomainDispatcherApplication.__call__ = in_order  # type: ignore[method-assign]


def remember() -> None:
    """Keep what moto would look up again for each request."""
    # Any: modules of moto's that have no types.
    backends: Any = import_module("moto.backends")
    responses: Any = import_module("moto.core.responses")
    nodes: Any = import_module("moto.dynamodb.parsing.ast_nodes")
    expressions: Any = import_module("moto.dynamodb.parsing.expressions")

    services = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    responses.method_names_from_class = functools.cache(responses.method_names_from_class)
    parser, traverser = expressions.UpdateExpressionParser, nodes.DepthFirstTraverser
    parser.make = functools.cache(parser.make)  # What it returns is copied before it is changed.
    traverser.nodes_to_be_processed = _once(traverser.nodes_to_be_processed)


def _once(method: Callable[[Any], Any]) -> Callable[[Any], Any]:  # Any: moto's has no types.
    """Return a method that is called once for each object."""

    def call(self: Any) -> Any:
        if not hasattr(self, "_remembered"):
            self._remembered = method(self)
        return self._remembered

    return call


def keep_connections() -> None:
    """Speak HTTP/1.1, as AWS does, and do not log each request."""
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    WSGIRequestHandler.log_request = lambda *_, **__: None  # type: ignore[method-assign]


if __name__ == "__main__":
    answer_in_order()
    remember()
    keep_connections()
    main(sys.argv[1:])
