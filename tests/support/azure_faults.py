"""Faults between a client of Azure and its server: the requests are real, and so is what they do."""

from __future__ import annotations

from collections.abc import Callable

from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.storage.blob.aio import ContainerClient

Matches = Callable[[HttpRequest], bool]


class FaultPolicy(AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]):
    """Meddles with the requests that a test names, and counts those that go through."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_answer_to: Matches | None = None
        """The next such request is served, and its answer never comes; then None."""
        self.answer_busy_to: Matches | None = None
        """Such requests are not served: Azure has too much to do."""
        self.served: list[str] = []
        """Methods of the requests that were served."""

    async def send(
        self, request: PipelineRequest[HttpRequest]
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        """Pass a request on."""
        http = request.http_request
        if self.answer_busy_to is not None and self.answer_busy_to(http):
            # One that every server refuses, read as one that this server refuses now.
            http.headers["If-Match"] = '"no such state"'
            response = await self.next.send(request)
            response.http_response.status_code = 503
            response.http_response.headers["x-ms-error-code"] = "ServerBusy"
            return response
        response = await self.next.send(request)
        self.served.append(http.method)
        if self.lose_answer_to is not None and self.lose_answer_to(http):
            self.lose_answer_to = None
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
