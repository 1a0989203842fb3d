"""Whole runs for end-to-end tests: in this process, or by the real command in processes of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from run_configs import INLINE, TROUBLED_ENV, Plain, cartpole
from run_folders import streams

from headrace.config import RunConfig
from headrace.paths import on_linux
from headrace.pipeline.common.signals import SAME_S
from headrace.pipeline.run import RunOptions, RunResult, run
from headrace.pipeline.run_folder.checkpoint import Checkpoint, newest_checkpoint

COMMAND = Path(__file__).parents[1] / "bin" / "run-pipeline"
MARK = "HEADRACE_TEST_RUN"
PATIENCE_S = 90.0
"""For things that take a second or two; a slow machine is no failure."""
MORE_PATIENCE_S = 400.0
"""The same in slow tests and for Ray, which starts its processes one after the other: on two cores that others use, too."""
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes standard input the terminal of a session, and is the command from then on."""


NEEDS_LINUX = pytest.mark.skipif(
    not on_linux(), reason="elsewhere nobody finds a game in a session of its own, or ends a C call that holds the lock"
)


def run_here(plain: Plain, results: Path, run_id: str, options: RunOptions | None = None, **settings: Any) -> RunResult:
    """Run a configuration in this process; `settings` go to `checkpoint_settings`."""
    whole = {**plain, "checkpoint_settings": {"results_dir": str(results), "run_id": run_id, **settings}}
    return run(RunConfig.from_plain(whole, TROUBLED_ENV), options)


def assert_no_children() -> None:
    """Nothing that a run in this process has started is still running, or will be soon; its sweeper alone stays."""
    deadline = time.monotonic() + 15.0
    while left := [child for child in psutil.Process().children(recursive=True) if not _may_stay(child)]:
        assert time.monotonic() < deadline, f"processes stayed behind: {left}"
        time.sleep(0.02)


def _may_stay(process: psutil.Process) -> bool:
    try:
        if process.name() == "explorer.exe":  # Wine's desktop, which the first window of a test starts
            return True
        return any(word.endswith("sweeper.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return True


def record_expert(folder: Path) -> str:
    """Record some 800 steps of CartPole; the stream that they are in."""
    expert = cartpole(behaviors__CartPole__max_steps=800, record__edges=["trainer"], **INLINE)
    run_here(expert, folder, "expert")
    return streams(folder / "expert")[0]


class Command:
    """`bin/run-pipeline` in a process of its own, with all that it starts.

    Everything that it starts inherits a mark in its environment, by which its processes are found even when their
    parent is gone.

    Args:
        folder: where the configuration is written and results go.
        plain: the configuration.
        arguments: of the command.
        run_id: of the run.
        beside: files to lie beside the configuration.
        environment: further environment variables.
        open_files: how many files each of its processes may have open at most; None: as many as the tests.
        terminal: whether it has a terminal of its own, whose window is the process `terminal`.
        python: by which it is started.
        patience_s: how long to wait for the command's next step before the test fails.
    """

    def __init__(
        self,
        folder: Path,
        plain: Plain,
        *arguments: str,
        run_id: str = "run",
        beside: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
        python: str = sys.executable,
        terminal: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        folder.mkdir(parents=True, exist_ok=True)
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.results = folder / "results"
        self.run_folder = self.results / run_id
        for path in beside:
            shutil.copy(path, folder)
        config = folder / f"{run_id}.yaml"
        config.write_text(yaml.safe_dump(plain))
        self._mark = uuid.uuid4().hex
        self._output = folder / f"{run_id}-{self._mark[:6]}.log"
        line = [python, str(COMMAND), str(config), "--run-id", run_id, "--results-dir", str(self.results)]
        if open_files is not None:
            line = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *line]
        self.terminal: subprocess.Popen[bytes] | None = None
        with self._output.open("wb") as output:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            if terminal:
                window, device = os.openpty()
                self.terminal = subprocess.Popen(["cat"], stdin=window, stdout=output)
                os.close(window)
                line = [sys.executable, "-c", IN_TERMINAL, *line]
                streams = {**dict.fromkeys(("stdin", "stdout", "stderr"), device), "start_new_session": True}
            self.process = subprocess.Popen(
                [*line, *arguments],
                **streams,
                cwd=folder,
                env={
                    **os.environ,
                    **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self.temporary)),  # the first is for Unix
                    MARK: self._mark,
                    **(environment or {}),
                },
            )
            if terminal:
                os.close(device)

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._output.read_text(errors="replace")

    def wait(self) -> int:
        """Wait for the end of the command itself; its exit status."""
        try:
            return self.process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"the command did not end within {self._patience_s:.0f} s; it said:\n{self.output}")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send main a signal."""
        self._interrupted_s = time.monotonic()
        self.process.send_signal(number)

    def interrupt_again(self, number: int = signal.SIGINT) -> None:
        """Send main a signal that is another one: not within a second of the first."""
        self.until(lambda: time.monotonic() - self._interrupted_s > SAME_S, "the second in which both are one")
        self.process.send_signal(number)

    def end_after(self, words: str) -> str:
        """Interrupt main once it has said these words, and see it end in order; all that it has said."""
        try:
            self.until(lambda: words in self.output, f"{words!r}")
            self.interrupt()
            assert self.wait() == 0, self.output
        finally:
            self.end()
        return self.output

    def pid_of(self, host: str) -> int:
        """The process id of a host; waits until it is there."""
        found: dict[str, int] = {}

        def there() -> bool:
            found.update(self.hosts())
            return host in found

        self.until(there, f"the process of {host}")
        return found[host]

    def hosts(self) -> dict[str, int]:
        """The host processes that are running: process ids by host name."""
        lines = {pid: _command_line(pid) for pid in self.processes()}
        return {
            words[words.index("headrace.pipeline.hosts.child") + 1]: pid
            for pid, words in lines.items()
            if "headrace.pipeline.hosts.child" in words
        }

    def processes(self) -> list[int]:
        """All that is running of this run, main included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has just ended, or is somebody else's
                if process.environ().get(MARK) == self._mark:
                    found.append(process.pid)
        return found

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that another process does."""
        deadline = time.monotonic() + self._patience_s
        while not condition():
            if self.process.poll() is not None and not condition():
                pytest.fail(f"the command ended with {self.process.returncode} before {what}; it said:\n{self.output}")
            if time.monotonic() > deadline:
                pytest.fail(f"no {what} within {self._patience_s:.0f} s; the command said:\n{self.output}")
            time.sleep(0.01)  # there is no event to wait for: what is watched is another process's work on disk

    def until_checkpoint(self, number: int = 0) -> Checkpoint:
        """Wait until this checkpoint (or a later one) is whole."""
        checkpoints = self.run_folder / "checkpoints"
        self.until(
            lambda: (found := newest_checkpoint(checkpoints)) is not None and found.number >= number,
            f"checkpoint {number}",
        )
        checkpoint = newest_checkpoint(checkpoints)
        assert checkpoint is not None
        return checkpoint

    def until_gone(self) -> None:
        """Wait until nothing of this run is running any more: no process may outlive main for long."""
        deadline = time.monotonic() + 15.0
        while self.processes():
            if time.monotonic() > deadline:
                left = {pid: " ".join(_command_line(pid)) for pid in self.processes()}
                self.end()
                pytest.fail(f"processes stayed behind: {left}; the command said:\n{self.output}")
            time.sleep(0.02)

    def end(self) -> None:
        """Kill whatever is left of it."""
        for pid in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self.process.wait(self._patience_s)
        if self.terminal is not None:
            self.terminal.kill()
            self.terminal.wait(self._patience_s)

    def assert_left_nothing(self) -> None:
        """No process, no memory, no temporary file stays behind (in the folders that this run had for itself)."""
        self.until_gone()
        assert list(self.temporary.iterdir()) == []
        assert not [p for p in shared_memory() if "headrace" in p]
        assert not (self.run_folder / ".lock").exists() or self.process.returncode < 0


def _command_line(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def shared_memory() -> list[str]:
    """Names of what lies in `/dev/shm`."""
    folder = Path("/dev/shm")
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
