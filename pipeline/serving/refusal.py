"""Why a request for actions is refused, with the statuses of HTTP and gRPC that say so: one table for both servers."""

from __future__ import annotations

from enum import Enum


class ErrorKind(Enum):
    """The reasons: (status of HTTP, name of the status of gRPC)."""

    MALFORMED = (400, "INVALID_ARGUMENT")
    UNKNOWN = (404, "NOT_FOUND")
    BUSY = (409, "ABORTED")
    UNFIT = (422, "INVALID_ARGUMENT")
    FAULT = (500, "INTERNAL")
    OVERLOADED = (503, "RESOURCE_EXHAUSTED")
    ENDING = (503, "UNAVAILABLE")
    LATE = (504, "DEADLINE_EXCEEDED")

    @property
    def http(self) -> int:
        """The status of HTTP."""
        return self.value[0]

    @property
    def grpc(self) -> str:
        """The name of the status of gRPC."""
        return self.value[1]


class RequestRefused(Exception):
    """A request is refused, and nothing has changed by it.

    Args:
        why: the reason.
        message: what was wrong, and what was expected.
    """

    def __init__(self, why: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.why = why
