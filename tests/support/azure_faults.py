"""Faults between a client of Azure and its server: the requests are real, and so is what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from azure.core.exceptions import HttpResponseError, ServiceResponseError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.storage.blob.aio import ContainerClient

Matches = Callable[[HttpRequest], bool]


class FaultPolicy(AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]):
    """Meddles with the requests that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_answer_to: Matches | None = None
        """The next such request is served, and its answer never comes; then none is lost any more."""
        self.answer_busy_to: Matches | None = None
        """Such requests are not served: Azure has too much to do."""
        self.lost_answers = 0
        self.hold: Matches | None = None
        """Such requests wait until `release`."""
        self.holds = asyncio.Event()
        """Set once one waits."""
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the requests go on that wait, and hold no others."""
        self.hold = None
        self._released.set()

    async def send(
        self, request: PipelineRequest[HttpRequest]
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        """Pass a request on."""
        http = request.http_request
        if self.answer_busy_to is not None and self.answer_busy_to(http):
            busy = HttpResponseError("ServerBusy: the server is busy")
            busy.status_code = HTTPStatus.SERVICE_UNAVAILABLE
            raise busy
        if self.hold is not None and self.hold(http):
            self.holds.set()
            await self._released.wait()
        response = await self.next.send(request)
        if self.lose_answer_to is not None and self.lose_answer_to(http):
            self.lose_answer_to = None
            self.lost_answers += 1
            raise ServiceResponseError("the connection was closed before the answer came")
        return response


def writes(request: HttpRequest) -> bool:
    """Tell whether a request writes a blob."""
    return request.method == "PUT" and "comp=" not in request.url and "restype" not in request.url


def faulty_container(connection_string: str, name: str) -> tuple[ContainerClient, FaultPolicy]:
    """Return a client that tries everything once, and its faults."""
    faults = FaultPolicy()
    client = ContainerClient.from_connection_string(
        connection_string, name, retry_total=0, _additional_pipeline_policies=[faults]
    )
    return client, faults
