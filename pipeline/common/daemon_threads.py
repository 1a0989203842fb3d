"""Awaits a blocking call in a daemon thread, which does not keep the process alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from headrace.queues.disks import start_in_thread
from headrace.stop_requests import clean_up

T = TypeVar("T")


async def in_thread(name: str, call: Callable[..., T], *arguments: Any, hurry: asyncio.Event | None = None) -> T:
    """Return the result of a blocking call in a daemon thread. If the await is cancelled, abandon the thread.

    Args:
        name: the thread's name.
        call: the function to call.
        arguments: its arguments.
        hurry: when this is set, everything that the call has started is cleaned up, so that the call returns early.
    """
    future, thread = start_in_thread(name, copy_context().run, call, *arguments)
    hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
    hurried.add_done_callback(lambda _: clean_up(thread))
    try:
        return await asyncio.wrap_future(future)
    finally:
        hurried.cancel()
