"""Threads for calls that may hang, such as file calls to an unresponsive disk. They do not keep the process alive."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from headrace.pipeline.common.output import complain
from headrace.stop_requests import clean_up

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThread(Executor):
    """Runs a call in a new thread. Unlike the standard library's executors, it joins no thread at exit.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Start the call."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(call(*arguments, **named))
            except StopIteration as error:  # a future of asyncio refuses it, and would never be done
                raised = RuntimeError(f"raised {error!r}")
                raised.__cause__ = error
                future.set_exception(raised)
            except BaseException as error:  # the code that awaits the future handles the error
                future.set_exception(error)

        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()
        return future

    def abandon(self) -> None:
        """Clean up what the call has started (`cleaned_up_by`), because its result is no longer needed."""
        if self._thread is not None:
            clean_up(self._thread)


async def in_thread(name: str, call: Callable[..., T], *arguments: Any, hurry: asyncio.Event | None = None) -> T:
    """Return the result of a blocking call in a daemon thread. If the await is cancelled, abandon the thread.

    Args:
        name: the thread's name.
        call: the function to call.
        arguments: its arguments.
        hurry: when this is set, everything that the call has started is cleaned up, so that the call returns early.
    """
    thread = DaemonThread(name)
    hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
    hurried.add_done_callback(lambda _: thread.abandon())
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, call, *arguments)
    finally:
        hurried.cancel()


NAMED_S = 10.0
"""Seconds without an answer after which a warning on the terminal names a file."""
SLOW_S = 0.5
"""Seconds without an answer after which a call counts as slow, and between checks of a slow call."""


@dataclass
class Disks:
    """How long this process waits for its disks."""

    limit_s: float = math.inf
    """Seconds without an answer after which a file call fails: in main, half of `pipeline.supervision.grace_s`. Other
    processes have no limit, because main supervises them."""
    slow: dict[Future[Any], str] = field(default_factory=dict)
    """The slow calls that have not returned yet, with the file's name if the call has failed, and otherwise empty."""

    @property
    def unanswered(self) -> str:
        """Name of a file whose call has failed and still hangs; other calls then fail at once. Empty if none does."""
        return next(filter(None, [*self.slow.values()]), "")


DISKS = Disks()


def answered(file: object, call: Callable[..., T], *arguments: Any, limit_s: float | None = None) -> T:
    """Return the result of a blocking file call.

    A thread makes the call, because a system call may ignore signals while a disk does not answer.

    Args:
        file: the file's path or descriptor, for messages.
        call: the function to call.
        arguments: its arguments.
        limit_s: seconds after which this call fails, independently of other calls; None for the limit in `DISKS`.

    Raises:
        OSError: if the disk does not answer in time.
    """
    if limit_s is None and DISKS.unanswered:
        raise OSError(f"the disk still has not answered for {DISKS.unanswered}")
    future = DaemonThread("file call").submit(call, *arguments)
    begun_s, name = time.monotonic(), ""
    while not wait([future], SLOW_S).done:
        DISKS.slow.setdefault(future, "")
        waited_s, most_s = time.monotonic() - begun_s, DISKS.limit_s if limit_s is None else limit_s
        if waited_s >= min(NAMED_S, most_s) and not name:
            name = _path_of(file)
            complain(f"[WARNING] {name} has not been read or written for {waited_s:.0f} s; the disk may hang.")
        if waited_s >= most_s or (limit_s is None and DISKS.unanswered):
            DISKS.slow[future] = "" if limit_s is not None else name or _path_of(file)
            future.add_done_callback(lambda done: DISKS.slow.pop(done, None))
            raise OSError(f"the disk has not answered for {waited_s:.0f} s: {name or _path_of(file)}")
    DISKS.slow.pop(future, None)
    if name:
        complain(f"[INFO] {name} has now been read or written.")
    return future.result()


def _path_of(file: object) -> str:
    if isinstance(file, int):
        with suppress(OSError):  # not on Linux
            return os.readlink(f"/proc/self/fd/{file}")
    return str(file)
