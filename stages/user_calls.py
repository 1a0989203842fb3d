"""Calls of the user's plain functions, which may run event loops themselves: Headrace's own loop is hidden meanwhile.

asyncio allows one running loop per thread, so `asyncio.run` in an environment, or a library that uses it inside, would
fail in a host, whose loop calls the environment. Libraries such as Playwright leave their own loop running between two
calls, so each thread keeps what user code has left and shows it again to the next call.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Loops(threading.local):
    left: asyncio.AbstractEventLoop | None = None
    """The loop that user code has left running."""
    hidden: asyncio.AbstractEventLoop | None = None
    """Headrace's loop during a call; None outside calls."""
    alone = False


_loops = _Loops()


def call_user(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a plain function of the user; if the result is awaitable, await it outside this call."""
    ours = _get_running_loop()
    if ours is None or _loops.hidden is not None:  # a nested call
        return function(*arguments, **named)
    _loops.hidden = ours
    _set_running_loop(_loops.left)
    try:
        return function(*arguments, **named)
    finally:
        _loops.left = _get_running_loop()
        _set_running_loop(ours)
        _loops.hidden = None


def calls_user(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that calls the user's code, as `call_user` does for one call."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        return call_user(function, *arguments, **named)

    return called


def in_a_loop() -> bool:
    """Return True if an event loop is running or hidden in this thread."""
    return _loops.hidden is not None or _get_running_loop() is not None


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of which user code sees nothing, not even by `asyncio.get_event_loop`."""
    _loops.alone = True
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(coroutine)
    finally:
        _loops.alone = False


def notify_user(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
    """Call a callback. Hide the loop only if it is Headrace's own: with `run_async`, it is the caller's."""
    if _loops.alone:
        call_user(function, *arguments, **named)
    else:
        function(*arguments, **named)
