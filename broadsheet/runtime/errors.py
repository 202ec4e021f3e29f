"""Exceptions that every package may raise, and the root of all."""

from __future__ import annotations

import errno
from typing import ClassVar


class BroadsheetError(Exception):
    """Root of all exceptions of ours."""


class ValidationError(BroadsheetError):
    """A value breaks a rule; `field_path` names the field, `problem` says what was expected."""

    def __init__(self, field_path: str, problem: str) -> None:
        super().__init__(f"{field_path}: {problem}" if field_path else problem)
        self.field_path = field_path
        self.problem = problem

    def under(self, parent: str) -> ValidationError:
        """Return the same error with `parent` before its path, e.g. `sources[2]` before `journal`."""
        if not self.field_path:
            return ValidationError(parent, self.problem)
        joint = "" if self.field_path.startswith("[") else "."
        return ValidationError(f"{parent}{joint}{self.field_path}", self.problem)


class ExtraMissingError(BroadsheetError, ImportError):
    """A feature needs an extra that is not installed; the message is the command that installs it."""

    def __init__(self, what: str, extra: str, packages: str, *, module: str = "") -> None:
        super().__init__(f"{what} {needs_extra(extra, packages)}")
        self.extra = extra
        self.name = module


def needs_extra(extra: str, packages: str) -> str:
    """Return the message for a feature whose extra is missing: the packages, and the command that installs them."""
    # Imported here, because reading the metadata of installed packages costs milliseconds, and most programs lack none.
    from broadsheet.runtime.extras import install_command

    command = install_command(extra)
    return f"needs {packages} (the extra `{extra}`)" + (f": {command}" if command else "")


class ServiceError(BroadsheetError):
    """Root of what journals, shards and leases raise, and the servers of both."""

    rpc_status: ClassVar[str] = ""
    """Name of the gRPC status of a call that it ends; empty: `broadsheet.consumer.rpc.grpc_status` says it."""


class BoundExceededError(ServiceError):
    """A request exceeds the service's limit; the message names the bound and how to stay below it."""


class EndpointError(ServiceError):
    """A server cannot be reached; `address` is the address that was tried."""

    def __init__(self, address: str, detail: str, *, never_connected: bool = False) -> None:
        super().__init__(f"cannot reach {address}: {detail}")
        self.address = address
        self.detail = detail
        self.never_connected = never_connected
        """Nothing of the request can have been seen by the server, so repeating it is safe."""


class CannotListenError(EndpointError):
    """A server of this process cannot listen at its address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.args = (
            f"cannot listen at {address}: {reason}; end what listens there, or choose another address",
        )


class ServerEndedError(ServiceError):
    """The gRPC server of this process has ended, and nothing of ours stopped it."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(
            f"the gRPC server ended by itself ({cause!r})"
            if cause
            else "the gRPC server ended by itself"
        )


_ADVICE = {
    errno.ENOSPC: "free some space, or choose another directory",
    errno.EDQUOT: "free some space, or choose another directory",
    errno.EROFS: "choose a directory that can be written",
    errno.EACCES: "choose a directory that this user may write, or change its mode",
    errno.EPERM: "choose a directory that this user may write",
    errno.EEXIST: "expected a directory there: choose another",
    errno.ENOTDIR: "expected a directory there: choose another",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
}


def os_error_text(error: OSError) -> str:
    """Return the system's error as one line: what of, why, and what to do."""
    what = f"{error.filename}: " if error.filename is not None else ""
    reason = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0)
    return f"{what}{reason}{f'; {advice}' if advice else ''}"


class RpcFailedError(ServiceError):
    """A server was reached but failed the request; `code` is the name of the gRPC status."""

    def __init__(self, address: str, code: str, detail: str) -> None:
        super().__init__(f"{address} failed the request: {code}: {detail}")
        self.address = address
        self.code = code
        self.detail = detail


class EmbeddedServerError(ServiceError):
    """An embedded server was not found, did not start, or died; `detail` says why and what to do."""

    def __init__(self, server: str, detail: str) -> None:
        super().__init__(f"embedded {server}: {detail}")
        self.server = server
        self.detail = detail
