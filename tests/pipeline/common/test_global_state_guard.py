"""What Headrace needs of its process is put back where code of users has changed it, and that is said once."""

from __future__ import annotations

import logging
import logging.config
import signal
import sys
from contextlib import contextmanager

import pytest

from headrace.pipeline.common.global_state_guard import global_state_guard, put_back
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.reporting.console import configure_logging, logged_to

OURS = logging.getLogger("headrace")
PART = logging.getLogger("headrace.stages.loop")


def disable_loggers():
    """Disable all loggers that are there, as a user's `dictConfig` does.

    It also closes all handlers; absl's, which TensorBoard imports, would close the stream that pytest captures.
    """
    alive = vars(logging)["_handlerList"]
    handlers = [*alive]
    alive.clear()
    try:
        logging.config.dictConfig({"version": 1})
    finally:
        alive.extend(handlers)


@contextmanager
def as_before():
    """Nothing of what a test changes stays."""
    handlers = [(logger, logger.level, [*logger.handlers], logger.propagate) for logger in (OURS, logging.root)]
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in [*logging.root.manager.loggerDict]:
            logging.getLogger(name).disabled = False
        for logger, level, theirs, propagate in handlers:
            logger.handlers[:], logger.propagate = theirs, propagate
            logger.setLevel(level)


@pytest.fixture
def console(capsys):
    """The log of a command, in the run's folder too."""
    with as_before():
        yield configure_logging()


CHANGES = {
    "logging.disable()": lambda: logging.disable(logging.CRITICAL),
    "loggers below 'headrace'": disable_loggers,
    "the handlers of the logger 'headrace'": lambda: OURS.handlers.clear(),
    "the level of the logger 'headrace'": lambda: OURS.setLevel(logging.CRITICAL),
}


@pytest.mark.parametrize("what", CHANGES)
def test_logging_continues_in_the_terminal_and_the_folder_after_user_code_changed_it(what, console, capsys, tmp_path):
    with global_state_guard(), logged_to(tmp_path, append=False):
        CHANGES[what]()
        put_back()
        PART.info("the run goes on")
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "[INFO] the run goes on"
    assert f"Your code changed process-wide state that Headrace needs; Headrace has restored it: {what}." in said
    assert "[INFO] the run goes on" in (tmp_path / "run_logs" / "run.log").read_text(encoding="utf-8")


def test_a_change_of_global_state_is_reported_once(console, capsys):
    with global_state_guard():
        for _ in range(3):
            OURS.setLevel(logging.ERROR)
            put_back()
    assert capsys.readouterr().out.count("the level of the logger 'headrace'") == 1


def test_settings_made_by_the_caller_before_the_run_are_kept(console, capsys):
    logging.disable(logging.INFO)
    with global_state_guard():
        put_back()
        PART.info("not to be said")
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="these signals are POSIX's")
@pytest.mark.parametrize("foreign", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_requests_to_end_are_received_again(foreign, console):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
    with requests_received(lambda _: None), global_state_guard():
        ours = [signal.getsignal(number) for number in numbers]
        woken = signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, foreign)
        put_back()
        assert [signal.getsignal(number) for number in numbers] == ours
        assert signal.set_wakeup_fd(woken) == woken


def test_signals_that_a_caller_handles_are_the_callers(console, capsys):
    before = signal.getsignal(signal.SIGINT)
    try:
        with global_state_guard():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            put_back()
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
