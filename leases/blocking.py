"""A record store on a dedicated event-loop thread, so that façades work in programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.leases.store import RecordStore

FacadeT = TypeVar("FacadeT")
P = ParamSpec("P")
T = TypeVar("T")

OpenStore = Callable[[], AbstractAsyncContextManager[RecordStore]]
"""A function that opens a store; e.g. `lambda: nullcontext(SqlRecordStore(engine))`."""


class StoreThread:
    """Runs a record store on its own thread. Any thread may call it, but a forked process may not."""

    def __init__(self, open_store: OpenStore, *, name: str) -> None:
        """Open the store.

        Args:
            open_store: Called on the thread once.
            name: Of the thread, for debuggers.

        Raises:
            BaseException: what the store raised as it opened.
        """
        self._thread = LoopThread(name=name)
        self._opened: Future[RecordStore] = Future()
        self._released = asyncio.Event()
        self._open = self._thread.start(self._keep_open(open_store))
        self._open.add_done_callback(self._on_ended)
        try:
            self.store = self._opened.result()
        except BaseException:
            self._thread.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the store's thread and return its result, or raise its error.

        Raises:
            RuntimeError: the thread is closed, or this process got it by a fork.
        """
        return self._thread.call(coroutine)

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent.

        Raises:
            BaseException: what the store raised at its end.
        """
        if self._thread.is_a_forks_copy:
            return
        try:
            if not self._open.done():
                self._thread.call(self._release())
            self._open.result()
        finally:
            self._thread.close()

    async def _keep_open(self, open_store: OpenStore) -> None:
        """Enter and leave the store in one task, as groups of tasks demand."""
        async with open_store() as store:
            self._opened.set_result(store)
            await self._released.wait()

    async def _release(self) -> None:
        self._released.set()

    def _on_ended(self, ended: Future[None]) -> None:
        """Hand the caller the error with which opening the store failed."""
        if not self._opened.done():
            error = None if ended.cancelled() else ended.exception()
            self._opened.set_exception(error or RuntimeError("the store was closed as it opened"))


class OnStoreThread(Generic[FacadeT]):
    """Base of the blocking façades: a store's thread, and the façade that was built on the store there."""

    def __init__(
        self, open_store: OpenStore, new_facade: Callable[[RecordStore], FacadeT], *, name: str
    ) -> None:
        """Open the store on a thread.

        Args:
            open_store: Called there once.
            new_facade: Returns what has the operations.
            name: Of the thread.
        """
        self._thread = StoreThread(open_store, name=name)
        self._facade = new_facade(self._thread.store)

    def close(self) -> None:
        """Close the store, and end the thread. Idempotent.

        Raises:
            BaseException: what the store raised at its end.
        """
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def blocking(
    operation: Callable[Concatenate[FacadeT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[OnStoreThread[FacadeT], P], T]:
    """Return an operation as a method that blocks until its answer, and raises the same."""

    @wraps(operation)
    def call(self: OnStoreThread[FacadeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(operation(self._facade, *args, **kwargs))

    return call
