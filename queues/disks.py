"""Blocking calls, which may never return, in threads that do not keep the process alive.

Everything that reads or writes the files of a run, in any process, goes through `answered`, because a disk may hang;
`files` is built on it. `in_thread` awaits other calls that block.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.stop_requests import clean_up, say

T = TypeVar("T")

_FILE_CALL = "file call"


def start_in_thread(name: str, call: Callable[..., T], *arguments: Any) -> tuple[Future[T], threading.Thread]:
    """Start a call in a new thread that does not keep the process alive; return its future result and the thread."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except StopIteration as error:  # a future of asyncio refuses it, and would never be done
            raised = RuntimeError(f"raised {error!r}")
            raised.__cause__ = error
            future.set_exception(raised)
        except BaseException as error:  # the code that waits for the future handles the error
            future.set_exception(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return future, thread


class _Thread(Executor):
    def __init__(self, name: str) -> None:
        self._name = name
        self.thread: threading.Thread | None = None

    def submit(self, call: Callable[..., T], /, *arguments: Any, **_: Any) -> Future[T]:
        future, self.thread = start_in_thread(self._name, call, *arguments)
        return future


async def in_thread(name: str, call: Callable[..., T], *arguments: Any, hurry: asyncio.Event | None = None) -> T:
    """Return the result of a blocking call in a thread. If the await is cancelled, abandon the thread.

    Args:
        name: the thread's name.
        call: the function to call.
        arguments: its arguments.
        hurry: when this is set, everything that the call has started is cleaned up, so that the call returns early.
    """
    executor = _Thread(name)
    hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
    hurried.add_done_callback(lambda _: clean_up(executor.thread) if executor.thread is not None else None)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, call, *arguments)
    finally:
        hurried.cancel()


@dataclass(eq=False)
class Disks:
    """How long file calls wait for their disks. Use an instance with `used`.

    After a call has failed, all later calls with the same instance fail at once until the first one returns; if `apart`
    is True, only later calls for the same file.
    """

    limit_s: float = math.inf
    """Seconds without an answer after which a call fails. In main, it is half of `pipeline.supervision.grace_s`. Hosts
    have no limit, because main ends them."""
    tell: Callable[[str], object] = say
    """Receives the warnings; log records could wait for the same disk."""
    named_s: float = 10.0
    """Seconds without an answer after which a warning names the file."""
    checked_s: float = 0.5
    """Seconds between checks of a slow call."""
    apart: bool = False
    failed: dict[Future[Any], str] = field(default_factory=dict, init=False)
    """The failed calls that have not returned yet, with their files' names."""

    def unanswered(self, file: object = "") -> str:
        """Return the name of a file that still hangs and makes calls for `file` fail; empty if there is none."""
        return next((name for name in [*self.failed.values()] if not self.apart or name == str(file)), "")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Apply this instance to all calls within the context, including those of tasks that start in it."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Disks] = ContextVar("disks", default=Disks())  # noqa: B039 - hosts never change it


def current_disks() -> Disks:
    """Return the instance whose `used` context this code is in."""
    return _current.get()


def answered(file: object, call: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a blocking file call.

    A thread makes the call, because a system call may ignore signals while a disk does not answer.

    Args:
        file: the file's path, for messages.
        call: the function to call.
        arguments: its arguments.

    Raises:
        OSError: if the disk does not answer in time.
    """
    disks = current_disks()
    if hanging := disks.unanswered(file):
        raise OSError(f"the disk still has not answered for {hanging}")
    future, _ = start_in_thread(_FILE_CALL, call, *arguments)
    begun_s, named = time.monotonic(), False
    while not wait([future], disks.checked_s).done:
        waited_s = time.monotonic() - begun_s
        if not named and waited_s >= min(disks.named_s, disks.limit_s):
            named = True
            disks.tell(f"[WARNING] {file} has not been read or written for {waited_s:.0f} s; its storage may hang.")
        if waited_s >= disks.limit_s or disks.unanswered(file):
            disks.failed[future] = str(file)
            future.add_done_callback(lambda done: disks.failed.pop(done, None))
            raise OSError(f"the disk or storage has not answered for {waited_s:.0f} s: {file}")
    if named:
        disks.tell(f"[INFO] {file} has now been read or written.")
    return future.result()


def waits_for_disk() -> bool:
    """Return True if a file call in this process has not returned yet."""
    return any(thread.name == _FILE_CALL for thread in threading.enumerate())
