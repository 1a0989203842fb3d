"""Calls a function in a separate process (`subprocess_entry`): whatever it does there, the caller gets an answer."""

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
from headrace.pipeline.hosts.birth import child_environment, start_child
from headrace.pipeline.hosts.failures import how_it_ended
from headrace.pipeline.hosts.last_words import RAISED, LastWords
from headrace.pipeline.hosts.process_cleanup import new_mark, remove_folder_at_end, watch_host
from headrace.queues.packing import pack, unpack
from headrace.stages.environments.given import carried

_GRACE_S = 60.0
"""Extra seconds for the child to start and import, and to write its stack and exit after the time limit."""
_TOO_LONG = "Timeout ("
"""How the stack that faulthandler writes at the time limit begins."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The outcome of a call that gave no answer."""

    status: int | None
    """Exit status of its process, negative for a signal; None if it took too long."""
    stacks: str = ""
    """Its stack at the time limit, as written by `faulthandler`; may be empty."""
    error: str = ""
    """Its exception, if it raised one."""


def call_in_subprocess(
    function: str,
    config: RunConfig,
    timeout_s: float,
    *arguments: Any,
    imports: Sequence[str] = (),
    with_folder: bool = False,
) -> Any:
    """Call a function with a configuration and further arguments; return its result or `NoAnswer`.

    Args:
        function: `module:name`; its arguments and result are msgpack types.
        config: its first argument.
        timeout_s: time limit in seconds.
        arguments: further arguments.
        imports: modules to import before that time begins.
        with_folder: True to pass a folder for its files as the last argument; it is removed whatever happens.
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
        return NoAnswer(status, error=f"the process that tries it {how_it_ended(status or 0)}:\n{words}")
    return NoAnswer(None if words.startswith(_TOO_LONG) else status, words)


@contextmanager
def _folder() -> Iterator[str]:
    """Create a folder that is removed at the end of the context, or of this process, whatever ends it."""
    folder = os.path.join(tempfile.gettempdir(), f"headrace-trial-{os.urandom(8).hex()}")
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    with cleaned_up_by(remove):  # before it exists: a signal may come between any two lines
        remove_folder_at_end(folder)
        os.mkdir(folder, 0o700)
        try:
            yield folder
        finally:
            remove()


def _run(request: bytes, timeout_s: float) -> tuple[int | None, str]:
    """Run the child; return its exit status (None if it took too long) and last words. End all that it started."""
    no_window = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}
    words, mark = LastWords(), new_mark("trial")
    child, lifeline, ticket = start_child(
        "headrace.pipeline.main.subprocess_entry",
        "trial",
        words,
        [],
        child_environment() | no_window,
        mark,
        shows=False,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # an environment's output is not ours
        stderr=subprocess.DEVNULL,
    )
    watch_host(child.pid, mark)
    in_time = True
    with lifeline, cleaned_up_by(child.kill_all):
        try:
            child.communicate(ticket + request, timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            child.kill_all()
            child.wait()
            said = words.take()
    return child.returncode if in_time else None, said
