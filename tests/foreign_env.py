"""An environment that changes what its whole process shares, as packages of users do; `FOREIGN` names what."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import gc
import io
import locale
import logging
import logging.config
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any

import gymnasium
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
LATE = 300
"""Steps before the change."""


def goes_elsewhere() -> None:
    os.makedirs(os.path.join(HERE, "elsewhere"), exist_ok=True)
    os.chdir(os.path.join(HERE, "elsewhere"))


def goes_where_nothing_is() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def handles_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def configures_logging() -> None:
    logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL"}})  # disables the loggers that are there
    logging.getLogger("headrace").handlers.clear()
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)


def replaces_streams() -> None:
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()


def closes_streams() -> None:
    sys.stdout.close()
    sys.stderr.close()


def seeds_all() -> None:
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):  # whose import would hold the process for seconds
        torch.manual_seed(0)


def sets_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)


def freezes_clocks() -> None:
    now, wall = time.perf_counter(), time.time()
    time.perf_counter = lambda: now
    time.time = lambda: wall


def sets_asyncio() -> None:
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    asyncio.set_event_loop(None)


def sets_locale() -> None:
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "C")


def forks() -> None:
    if os.fork() == 0:
        raise ValueError("in the child")


def forks_and_returns() -> None:
    os.fork()


def leaves_a_fork() -> None:
    if os.fork() == 0:
        threading.Event().wait()


def raises_at_exit() -> None:
    atexit.register(lambda: 1 / 0)


CHANGES: dict[str, Callable[[], object]] = {
    "working directory": goes_elsewhere,
    "working directory, which is gone": goes_where_nothing_is,
    "os.environ": os.environ.clear,
    "PATH and TMPDIR": lambda: os.environ.update(PATH="/nowhere", TMPDIR="/nowhere", PYTHONPATH="/nowhere"),
    "locale": sets_locale,
    "signals": handles_signals,
    "logging": configures_logging,
    "logging.basicConfig": lambda: logging.basicConfig(force=True, level=logging.CRITICAL),
    "warnings": lambda: warnings.simplefilter("error"),
    "start method": lambda: multiprocessing.set_start_method("fork", force=True),
    "streams replaced": replaces_streams,
    "streams closed": closes_streams,
    "asyncio": sets_asyncio,
    "seeds": seeds_all,
    "float errors": lambda: np.seterr(all="raise"),
    "torch": sets_torch,
    "gc": gc.disable,
    "faulthandler": faulthandler.disable,
    "socket timeout": lambda: socket.setdefaulttimeout(0.001),
    "clocks": freezes_clocks,
    "atexit": raises_at_exit,
    "fork that raises": forks,
    "fork that returns": forks_and_returns,
    "fork that stays": leaves_a_fork,
    "thread that stays": lambda: threading.Thread(target=threading.Event().wait).start(),
}
"""By what is changed."""
EXCEPT = {"working directory, which is gone", "streams closed", "thread that stays"}
"""What can't be done with the others, or takes the time limit of the end."""


def change_all(without: Collection[str] = ()) -> None:
    """Change all that can be changed at once."""
    for name, change in CHANGES.items():
        if name not in EXCEPT and name not in without:
            change()


class Env(gymnasium.Env[Any, Any]):
    """Eight steps of noise per episode."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 8
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        Env.steps += 1
        if Env.steps == LATE:
            asked = os.environ.get("FOREIGN", "")
            if asked == "all":
                change_all()
            elif asked:
                CHANGES[asked]()
        return self._observation(), 1.0, not self._left, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)
