"""What one process keeps between tasks: its channels, and who serves which shard.

Spark gives a task nothing that outlives it, but may give the process to the next one. So this is found by process id:
a fork, which can use neither its parent's channels nor its locks, finds nothing and starts anew.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from random import Random

from spark_bridge.routing.channels import WorkerChannels
from spark_bridge.routing.routes import RouteTable

CLUSTERS_MAX = 16
"""Most clusters whose routes a worker keeps; beyond, the one met first is forgotten."""
THREADS_MAX = 32
"""Calls under way at once as futures; more wait."""


class Worker:
    """The channels and routes of this process."""

    def __init__(self) -> None:
        self.channels = WorkerChannels()
        self.random = Random()
        """So that workers do not all ask the same member where shards are."""
        self._routes: dict[str, RouteTable] = {}

    def routes(self, cluster: str) -> RouteTable:
        """Return the routes of a cluster."""
        found = self._routes.get(cluster)
        if found is None:
            while len(self._routes) >= CLUSTERS_MAX:
                self._routes.pop(next(iter(self._routes)))
            found = self._routes.setdefault(cluster, RouteTable())
        return found

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """For calls that their caller does not wait for; started when there is one."""
        return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="shard-calls")

    def close(self) -> None:
        """Close every channel and forget every route. What comes later starts anew."""
        self._routes.clear()
        threads: ThreadPoolExecutor | None = self.__dict__.pop("threads", None)
        if threads is not None:
            threads.shutdown(wait=False)
        self.channels.close()


def this_worker() -> Worker:
    """Return what this process keeps."""
    return _worker_of(os.getpid())


@cache
def _worker_of(process_id: int) -> Worker:
    # One entry, or in a fork two: the parent's stays unused, since closing its channels here could hang.
    del process_id
    return Worker()
