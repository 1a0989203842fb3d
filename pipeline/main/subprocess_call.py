"""Calls a function in a separate process (`subprocess_entry`); whatever happens there, the caller gets an answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import RunConfig
from headrace.config.tables import plugin_modules
from headrace.ending import cleaned_up_by
from headrace.pipeline.hosts.crash_file import RAISED, CrashFile
from headrace.pipeline.hosts.failures import how_it_ended
from headrace.pipeline.hosts.process_cleanup import end_left_behind, new_mark, remove_folder_at_end
from headrace.pipeline.hosts.spawn import child_environment, start_child
from headrace.queues.packing import pack, unpack
from headrace.stages.environments.given import carried

_GRACE_S = 60.0
"""Seconds, in addition to the time limit, for the child to start, import modules, write its stack and exit."""
_TOO_LONG = "Timeout ("
"""Beginning of the stack dump that faulthandler writes at the time limit."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The result of a call whose process gave no answer."""

    status: int | None
    """Exit status of the process, negative if a signal killed it; None if the call took too long."""
    stacks: str = ""
    """Stack dump at the time limit, as written by `faulthandler`; may be empty."""
    error: str = ""
    """Description of the exception that the call raised; empty if it raised none."""


def call_in_subprocess(
    function: str,
    config: RunConfig,
    timeout_s: float,
    *arguments: Any,
    imports: Sequence[str] = (),
    with_folder: bool = False,
) -> Any:
    """Call a function with a configuration and additional arguments; return its result or `NoAnswer`.

    Args:
        function: `module:name`; the function's arguments and result are msgpack types.
        config: the function's first argument.
        timeout_s: time limit in seconds.
        arguments: additional arguments.
        imports: modules to import before the time limit starts.
        with_folder: True to pass a folder for the function's files as the last argument; the folder is always removed.
    """
    with _folder() as folder:
        path, plain = config.path, config.to_plain()
        request = {
            "path": sys.path,
            "plugins": plugin_modules(),
            "given": carried(plain),
            "folder": folder,
            "timeout_s": timeout_s,
            "config": plain,
            "config_path": None if path is None else str(path),
            "function": function,
            "arguments": [*arguments, folder] if with_folder else arguments,
            "imports": imports,
        }
        status, words = _run(pack(request), timeout_s + _GRACE_S)
        written = Path(folder) / "answer"
        if written.exists():
            said = unpack(written.read_bytes(), use_list=False)
            return NoAnswer(status, error=said["error"]) if "error" in said else said["answer"]
    if RAISED in words:
        return NoAnswer(status, error=f"the trial process {how_it_ended(status or 0)}:\n{words}")
    return NoAnswer(None if words.startswith(_TOO_LONG) else status, words)


@contextmanager
def _folder() -> Iterator[str]:
    """Create a folder that is removed when the context or this process ends, whatever the reason."""
    folder = os.path.join(tempfile.gettempdir(), f"headrace-trial-{os.urandom(8).hex()}")
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    with cleaned_up_by(remove):  # before the folder exists, because a signal may arrive between any two lines
        remove_folder_at_end(folder)
        os.mkdir(folder, 0o700)
        try:
            yield folder
        finally:
            remove()


def _run(request: bytes, timeout_s: float) -> tuple[int | None, str]:
    """Run the child, and end everything that it started; return its exit status (None on timeout) and crash file."""
    no_window = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}
    crash_file, mark = CrashFile(), new_mark()
    child, lifeline, ticket = start_child(
        "headrace.pipeline.main.subprocess_entry",
        "trial",
        crash_file,
        [],
        child_environment() | no_window,
        mark,
        shows=False,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # don't mix an environment's output with Headrace's
        stderr=subprocess.DEVNULL,
    )
    in_time = True
    with lifeline, cleaned_up_by(child.kill_all):
        try:
            child.communicate(ticket + request, timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            child.kill_all()
            child.wait()
            end_left_behind(child, mark)
            said = crash_file.read_and_close()
    return child.returncode if in_time else None, said
