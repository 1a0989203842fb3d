"""Process-wide state whose loss would silence a run or keep it from ending: logging and signal handlers.

An environment may change both at any moment, usually by accident: it configures its own logging, or imports a package
that does. Each process saves the state before user code runs, checks it about once a second, restores it if it has
changed, and warns once. Other state, such as `sys.path` or the clock, is left as it is.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.stop_requests import REQUESTS

log = logging.getLogger(__name__)

OURS = "headrace"
"""Name of the parent logger of all Headrace loggers."""


class GlobalState:
    """A snapshot of the process-wide state, taken when the object is created."""

    def __init__(self) -> None:
        self._disabled = logging.root.manager.disable
        self.handlers = [
            (logger, handler)
            for logger in (logging.getLogger(OURS), logging.root)
            for handler in logger.handlers
            if _is_ours(handler)
        ]
        """Headrace's handlers, each with its logger."""
        self._levels = {logger: logger.level for logger, _ in self.handlers}
        self._signals: dict[signal.Signals, object] = {}
        self._wakeup_fd = -1
        if threading.current_thread() is threading.main_thread():
            self._keep_signals()
        self._warned: set[str] = set()

    def _keep_signals(self) -> None:
        self._signals = {number: signal.getsignal(number) for number in REQUESTS if _is_ours(signal.getsignal(number))}
        if signal.SIGTERM in self._signals:
            self._wakeup_fd = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        # SIGPIPE stays ignored, so that a write to a closed pipe raises an error instead of killing the process.
        if hasattr(signal, "SIGPIPE") and signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN:
            self._signals[signal.SIGPIPE] = signal.SIG_IGN

    def put_back(self) -> None:
        """Restore the state that has changed, and warn. Call this in the thread that runs the event loop."""
        names = [name for name in dict.fromkeys(self._restore()) if name not in self._warned]
        self._warned.update(names)
        if names:
            words = "Your code changed process-wide state that Headrace needs; Headrace has restored it: %s."
            log.warning(words, ", ".join(names))

    def _restore(self) -> Iterator[str]:
        """Restore each piece of state, and yield the names of those that had changed."""
        if logging.root.manager.disable != self._disabled:
            logging.disable(self._disabled)
            yield "logging.disable()"
        for name in [*logging.root.manager.loggerDict]:
            if f"{name}.".startswith(f"{OURS}.") and logging.getLogger(name).disabled:
                logging.getLogger(name).disabled = False
                yield f"loggers below {OURS!r}"
        for logger, handler in self.handlers:
            if handler not in logger.handlers:
                logger.handlers.append(handler)
                yield f"the handlers of the logger {logger.name!r}"
        for logger, level in self._levels.items():
            if logger.level > level:
                logger.setLevel(level)
                yield f"the level of the logger {logger.name!r}"
        for number, kept in self._signals.items():
            if signal.getsignal(number) != kept:
                signal.signal(number, kept)  # type: ignore[arg-type]
                yield f"the handler of {number.name}"
        descriptor = self._wakeup_fd
        if descriptor != -1 and signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False) != descriptor:
            yield "signal.set_wakeup_fd()"


def _is_ours(thing: object) -> bool:
    return (getattr(thing, "__module__", None) or "").startswith(f"{OURS}.")


_kept: GlobalState | None = None


def guard_global_state() -> None:
    """Save the process-wide state for the rest of this process, unless it is already saved."""
    global _kept
    _kept = _kept or GlobalState()


@contextmanager
def global_state_guard() -> Iterator[None]:
    """Save the process-wide state and restore it within this context, unless it is already saved."""
    global _kept
    before = _kept
    guard_global_state()
    try:
        yield
    finally:
        put_back()
        _kept = before


@contextmanager
def keeping_handler(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    """Also restore a logger's handler if it is removed within this context."""
    handlers = [] if _kept is None else _kept.handlers
    handlers.append((logger, handler))
    try:
        yield
    finally:
        handlers.remove((logger, handler))


def put_back() -> None:
    """Restore the parts of the saved state that have changed; do nothing if no state is saved."""
    if _kept is not None:
        _kept.put_back()
