"""Threads for calls that may hang, such as writes to an unresponsive disk. They do not keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

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
