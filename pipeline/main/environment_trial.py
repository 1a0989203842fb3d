"""Tries a run's environments before training, in a process of its own, and says what is wrong with them.

Whatever a function does that is called there, there is an answer. So main imports no environment, and one that hangs,
crashes, prints or reads costs nothing but its time limit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from headrace.config import RunConfig
from headrace.config.tables import plugin_modules
from headrace.pipeline.common.graph import offline_demonstrations
from headrace.pipeline.common.process import let_child_find_us, use_one_thread
from headrace.pipeline.main.references import in_place
from headrace.stages.loading import users_folders

_SKIP = "--no-env-check skips this check"
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_GRACE_S = 5.0
"""After the time limit, at which the child writes its stack and ends, and for its start before."""
_TOO_LONG = "Timeout ("
"""What faulthandler then writes first."""


def try_environments(config: RunConfig) -> tuple[list[str], list[str]]:
    """Try the environments of a configuration; returns errors and warnings, each with its place.

    Nothing is tried where nothing acts (a replay, demonstrations alone), nor for kinds without a trial, as Unity.
    """
    if config.environment_kind.trial is None or config.replay is not None or offline_demonstrations(config):
        return [], []
    from headrace.stages.environments.trial import Remark  # a run that tries nothing needs no more than a call

    timeout_s = config.env_settings.timeout_wait
    answer = call_in_subprocess("headrace.stages.environments.trial:try_kind", config, timeout_s)
    if isinstance(answer, NoAnswer):
        remarks = [Remark(_unanswered(answer.status, timeout_s, _where(answer.stacks, config)))]
    else:
        remarks = [Remark(**each) for each in answer]
    texts = [(remark.serious, in_place(config, remark.key or ("environment",), remark.text)) for remark in remarks]
    return [text for serious, text in texts if serious], [text for serious, text in texts if not serious]


def _unanswered(status: int | None, timeout_s: float, where: str) -> str:
    if status is None:
        return (
            f"the environment did not finish its trial in {timeout_s:g} seconds{where}: it hangs, waits or is very "
            f"slow; mend it, or raise env_settings.timeout_wait ({_SKIP})"
        )
    if status < 0:
        how = f"crashed by {signal.Signals(-status).name}"
    else:
        how = f"ended its process by itself with status {status}"
    return (
        f"the environment {how} while it was tried{where}; expected an environment that raises an error instead: look "
        f"into what it calls there ({_SKIP})"
    )


def _where(stacks: str, config: RunConfig) -> str:
    """The innermost call in a file of the user's own; else the innermost of all."""
    calls = _FRAME.findall(stacks)
    own = tuple(str(folder) for folder in users_folders(config.source_folder))
    found = next((call for call in calls if call[0].startswith(own)), calls[0] if calls else None)
    return "" if found is None else f", at {found[0]}:{found[1]}, in {found[2]}"


# Calls of one function in a process of its own.


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A call that gave no answer."""

    status: int | None
    """Exit status of its process, negative for a signal; None if it took too long."""
    stacks: str
    """Where it was then, as `faulthandler` writes it; may be empty."""


def call_in_subprocess(function: str, config: RunConfig, timeout_s: float, *arguments: Any) -> Any:
    """Call a function with a configuration and further arguments; returns what it returns, or `NoAnswer`.

    Args:
        function: `module:name`; takes and returns what msgpack knows.
        config: its first argument.
        timeout_s: seconds that it may take.
        arguments: the others.
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
        }
        status = _run(msgpack.packb(request), timeout_s + _GRACE_S)
        written = Path(folder) / "answer"
        if written.exists():
            return msgpack.unpackb(written.read_bytes(), use_list=False, strict_map_key=False)
        stacks = Path(folder) / "stacks"
        text = stacks.read_text(encoding="utf-8", errors="replace") if stacks.exists() else ""
        return NoAnswer(None if text.startswith(_TOO_LONG) else status, text)


def _run(request: bytes, timeout_s: float) -> int | None:
    """Run the child; its exit status, None if it took too long. Its whole process group is ended."""
    quiet = {**os.environ, "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}  # no window
    let_child_find_us(quiet)
    use_one_thread(quiet)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.pipeline.main.subprocess_entry"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # whatever an environment prints is not ours
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=quiet,
    )
    try:
        child.communicate(request, timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
    return child.returncode
