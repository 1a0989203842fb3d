"""Threads for calls that may hang, such as writes to a disk that does not answer: they do not keep a process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreads(Executor):
    """Runs each call in a new thread; unlike the standard library's executors, it joins none at the process's end."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(call(*arguments, **named))
            except BaseException as error:  # whoever awaits the future handles it
                future.set_exception(error)

        threading.Thread(target=work, name="write into a pool", daemon=True).start()
        return future
