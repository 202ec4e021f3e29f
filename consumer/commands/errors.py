"""Exceptions of commands."""

from __future__ import annotations

from broadsheet.runtime.errors import ServiceError


class CommandRefusedError(ServiceError):
    """The application refused a command; its state has not changed. Asked again by its id, the answer is the same."""

    rpc_status = "FAILED_PRECONDITION"


class CommandIdReusedError(ServiceError):
    """Another request was executed under this id; an id belongs to one request for as long as answers are kept."""

    rpc_status = "ALREADY_EXISTS"

    def __init__(self, command_id: str) -> None:
        super().__init__(
            f"command {command_id!r}: another request was executed under this id; give each request an id of its own"
        )
        self.command_id = command_id


class CommandAnswerForgottenError(ServiceError):
    """A command was executed, and its answer was removed before the caller got it."""

    rpc_status = "DATA_LOSS"

    def __init__(self, command_id: str) -> None:
        super().__init__(
            f"command {command_id!r} was executed, and its answer is no longer kept: keep answers for longer than "
            "callers wait and repeat (Commands(keep_seconds=...))"
        )
        self.command_id = command_id
