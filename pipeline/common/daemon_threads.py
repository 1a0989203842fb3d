"""Threads for calls that may hang, such as writes to an unresponsive disk. They do not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreads(Executor):
    """Runs each call in a new thread. Unlike the standard library's executors, it joins no threads at exit.

    Args:
        name: the threads' name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(call(*arguments, **named))
            except BaseException as error:  # the code that awaits the future handles the error
                future.set_exception(error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future
