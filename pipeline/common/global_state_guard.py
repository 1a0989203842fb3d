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

from headrace.stop_requests import REQUESTS, WARNINGS

log = logging.getLogger(__name__)

OURS = "headrace"
"""Name of the parent logger of all Headrace loggers."""


class GlobalState:
    """A snapshot of the process-wide state, taken when the object is created."""

    def __init__(self) -> None:
        self.disabled = logging.root.manager.disable
        self.handlers = [
            (logger, handler)
            for logger in (logging.getLogger(OURS), logging.root)
            for handler in logger.handlers
            if _is_ours(handler)
        ]
        """Headrace's handlers, each with its logger."""
        self.levels = {logger: logger.level for logger, _ in self.handlers}
        self.signals: dict[signal.Signals, object] = {}
        self.wakeup_fd = -1
        if threading.current_thread() is threading.main_thread():
            self._keep_signals()
        self.warned: set[str] = set()

    def _keep_signals(self) -> None:
        numbers = [number for number in REQUESTS if number not in WARNINGS]  # user code may handle the others itself
        self.signals = {number: signal.getsignal(number) for number in numbers if _is_ours(signal.getsignal(number))}
        if signal.SIGTERM in self.signals:
            self.wakeup_fd = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(self.wakeup_fd, warn_on_full_buffer=False)
        # SIGPIPE stays ignored, so that a write to a closed pipe raises an error instead of killing the process.
        if hasattr(signal, "SIGPIPE") and signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN:
            self.signals[signal.SIGPIPE] = signal.SIG_IGN


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
    """Restore the parts of the saved state that have changed, and warn; do nothing if no state is saved.

    Call this in the thread that runs the event loop.
    """
    if _kept is None:
        return
    changed = []
    if logging.root.manager.disable != _kept.disabled:
        logging.disable(_kept.disabled)
        changed.append("logging.disable()")
    for name in [*logging.root.manager.loggerDict]:
        if f"{name}.".startswith(f"{OURS}.") and logging.getLogger(name).disabled:
            logging.getLogger(name).disabled = False
            changed.append(f"loggers below {OURS!r}")
    for logger, handler in _kept.handlers:
        if handler not in logger.handlers:
            logger.handlers.append(handler)
            changed.append(f"the handlers of the logger {logger.name!r}")
    for logger, level in _kept.levels.items():
        if logger.level > level:
            logger.setLevel(level)
            changed.append(f"the level of the logger {logger.name!r}")
    for number, signal_handler in _kept.signals.items():
        if signal.getsignal(number) != signal_handler:
            signal.signal(number, signal_handler)  # type: ignore[arg-type]
            changed.append(f"the handler of {number.name}")
    descriptor = _kept.wakeup_fd
    if descriptor != -1 and signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False) != descriptor:
        changed.append("signal.set_wakeup_fd()")
    names = [name for name in dict.fromkeys(changed) if name not in _kept.warned]
    _kept.warned.update(names)
    if names:
        words = "Your code changed process-wide state that Headrace needs; Headrace has restored it: %s."
        log.warning(words, ", ".join(names))
