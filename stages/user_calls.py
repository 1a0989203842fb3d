"""Hides Headrace's event loop while the user's plain functions run, because these may run loops themselves.

asyncio allows one running loop per thread. Libraries such as Playwright leave theirs running between two calls, so each
call sees the loop that the thread's last call has left.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Loops(threading.local):
    left: asyncio.AbstractEventLoop | None = None
    hidden = alone = False


_loops = _Loops()


def call_user(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a plain function of the user; if the result is awaitable, await it outside this call."""
    ours, hooks = _get_running_loop(), sys.get_asyncgen_hooks()
    if ours is None or _loops.hidden:  # a nested call
        return function(*arguments, **named)
    _loops.hidden = True
    _set_running_loop(_loops.left)
    try:
        return function(*arguments, **named)
    finally:
        _loops.left, _loops.hidden = _get_running_loop(), False
        _set_running_loop(ours)
        sys.set_asyncgen_hooks(*hooks)  # those of a loop that is left would close Headrace's generators


def calls_user(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that calls the user's code."""
    return wraps(function)(partial(call_user, function))


def notify_user(callback: Callable[[T], object], value: T) -> None:
    """Call a callback. Hide the loop only if it is Headrace's own: with `run_async`, it is the caller's."""
    if _loops.alone:
        call_user(callback, value)
    else:
        callback(value)


def in_a_loop() -> bool:
    """Return True if an event loop is running or hidden in this thread."""
    return _loops.hidden or _get_running_loop() is not None


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of which user code sees nothing, not even by `asyncio.get_event_loop`."""
    _loops.alone = True
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(coroutine)
    finally:
        _loops.alone = False
