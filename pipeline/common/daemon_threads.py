"""Threads for calls that may hang, such as writes to an unresponsive disk. They do not keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.stop_requests import clean_up

T = TypeVar("T")


async def in_thread(name: str, call: Callable[..., T], *arguments: Any, hurry: asyncio.Event | None = None) -> T:
    """Return the result of a blocking call in a daemon thread, which Python does not wait for when it exits.

    If the await is cancelled, what the call has started is cleaned up (`cleaned_up_by`).

    Args:
        name: the thread's name.
        call: the function to call.
        arguments: its arguments.
        hurry: when this is set, everything that the call has started is cleaned up, so that the call returns early.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(call(*arguments))
        except StopIteration as error:  # a future of asyncio refuses it, and would never be done
            raised = RuntimeError(f"raised {error!r}")
            raised.__cause__ = error
            future.set_exception(raised)
        except BaseException as error:  # the code that awaits the future handles the error
            future.set_exception(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
    hurried.add_done_callback(lambda _: clean_up(thread))
    try:
        return await asyncio.wrap_future(future)
    finally:
        hurried.cancel()
