"""Host failures: errors as messages to main, and descriptions of how processes ended."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Coroutine
from typing import Any

from headrace.config import ConfigError
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import ACTOR
from headrace.pipeline.control import HostFailed
from headrace.pipeline.run_folder.checkpoint import CheckpointError
from headrace.process_tree import describe_status
from headrace.queues.errors import QueueClosed, SpecError
from headrace.stages.errors import StageError, describe_error, is_failure, raised_in_user_code
from headrace.stages.loop import StageFailure


async def contained(host: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a host's coroutine.

    Turn an unexpected SystemExit or cancellation into a StageError, so that it is reported.
    """
    try:
        await work
    except Exception:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise StageError(f"the code of {host} raised {describe_error(error)}") from error


def root_cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the failure that caused the others, which is the first one that is not about a closed queue."""
    leaves = list(_leaves(group))
    causes = [leaf for leaf in leaves if not isinstance(leaf, QueueClosed)]
    named = [leaf for leaf in causes if isinstance(leaf, StageFailure)]
    return (named or causes or leaves)[0]


def describe_failure(host: str, error: BaseException) -> HostFailed:
    """Return the message that reports a host's failure to main."""
    stage = error.stage if isinstance(error, StageFailure) else ""
    cause = error.cause if isinstance(error, StageFailure) else error
    settings_are_wrong = isinstance(cause, ConfigError | CheckpointError | RunError)  # raised in any stage
    # An actor's own errors name the environment at fault, which says more than the actor's name.
    named = stage == ACTOR and isinstance(cause, StageError | SpecError)
    blamed = cause if settings_are_wrong or named else error
    plain = settings_are_wrong or isinstance(error, StageError | SpecError)
    return HostFailed(
        str(blamed) if plain else describe_error(error),
        "".join(traceback.format_exception(cause)),
        stage or host,
        cause.key if isinstance(cause, StageError) else (),
        raised_in_user_code(cause),
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


_WINDOWS_CRASH = 0x8000_0000
"""Lowest exit status that Windows itself uses when it ends a process."""


def how_it_ended(status: int) -> str:
    """Describe how a process ended, given its exit status, which is negative if a signal killed it."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {describe_status(status)}"


def crashed(status: int) -> bool:
    """Return True if a process crashed: it neither exited by itself nor was killed from outside."""
    return status >= _WINDOWS_CRASH or (status < 0 and -status not in (signal.SIGTERM, getattr(signal, "SIGKILL", 9)))
