"""Calls of one function in a process of its own (`subprocess_entry`): whatever it does there, there is an answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from headrace.config import RunConfig
from headrace.config.tables import plugin_modules
from headrace.pipeline.common.process import let_child_find_us, start_python, use_one_thread
from headrace.pipeline.hosts.failures import how_it_ended
from headrace.pipeline.hosts.last_words import RAISED, LastWords
from headrace.surroundings import surroundings

_GRACE_S = 60.0
"""After the time limit, at which the child writes its stack and ends, and for its start and its imports before."""
_TOO_LONG = "Timeout ("
"""What faulthandler then writes first."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A call that gave no answer."""

    status: int | None
    """Exit status of its process, negative for a signal; None if it took too long."""
    stacks: str = ""
    """Where it was then, as `faulthandler` writes it; may be empty."""
    error: str = ""
    """What it raised, if that is why."""


def call_in_subprocess(
    function: str, config: RunConfig, timeout_s: float, *arguments: Any, imports: Sequence[str] = ()
) -> Any:
    """Call a function with a configuration and further arguments; returns what it returns, or `NoAnswer`.

    Args:
        function: `module:name`; takes and returns what msgpack knows.
        config: its first argument.
        timeout_s: seconds that it may take.
        arguments: the others.
        imports: modules that are imported before that time begins.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-trial-", ignore_cleanup_errors=True) as folder:
        path = config.path
        request = {
            "path": sys.path,
            "plugins": plugin_modules(),
            "folder": folder,
            "timeout_s": timeout_s,
            "config": config.to_plain(),
            "config_path": None if path is None else str(path),
            "function": function,
            "arguments": arguments,
            "imports": imports,
        }
        status, words = _run(msgpack.packb(request), timeout_s + _GRACE_S)
        written = Path(folder) / "answer"
        if written.exists():
            said = msgpack.unpackb(written.read_bytes(), use_list=False, strict_map_key=False)
            return NoAnswer(status, error=said["error"]) if "error" in said else said["answer"]
    if RAISED in words:
        return NoAnswer(status, error=f"the process that tries it {how_it_ended(status or 0)}:\n{words}")
    return NoAnswer(None if words.startswith(_TOO_LONG) else status, words)


def _run(request: bytes, timeout_s: float) -> tuple[int | None, str]:
    """Run the child; its exit status, None if it took too long, and its words. What it has started ends with it."""
    no_window = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}
    quiet = {**surroundings().variables, **no_window}
    let_child_find_us(quiet)
    use_one_thread(quiet)
    words = LastWords()
    child = start_python(
        ["-P", "-m", "headrace.pipeline.main.subprocess_entry", words.argument],
        quiet,
        shows=False,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # whatever an environment prints is not ours
        stderr=subprocess.DEVNULL,
        **words.options,
    )
    in_time = True
    try:
        child.communicate(request, timeout_s)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        child.kill_all()
        child.wait()
        said = words.take()
    return child.returncode if in_time else None, said
