"""Tries a run's environments before training, in a process of its own: whatever that does, there is an answer.

So the command itself imports no environment, and one that hangs, crashes, prints or reads is one message.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgpack

from config import RunConfig
from pipeline.common.graph import offline_demonstrations
from pipeline.common.threads import use_one_thread
from pipeline.main.named_code import in_place
from stages.environment.trial import Remark
from stages.loading import users_folders

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
    remarks = _in_child(config, config.env_settings.timeout_wait)
    told = [(remark.serious, in_place(config, remark.key or ("environment",), remark.text)) for remark in remarks]
    return [text for serious, text in told if serious], [text for serious, text in told if not serious]


def _in_child(config: RunConfig, timeout_s: float) -> Sequence[Remark]:
    with tempfile.TemporaryDirectory(prefix="headrace-trial-", ignore_cleanup_errors=True) as folder:
        path = config.path
        asked = {
            "path": sys.path,
            "folder": folder,
            "timeout_s": timeout_s,
            "config": config.to_plain(),
            "config_path": None if path is None else str(path),
        }
        status = _run(msgpack.packb(asked), timeout_s + _GRACE_S)
        written = Path(folder) / "remarks"
        if written.exists():
            return [Remark(**each) for each in msgpack.unpackb(written.read_bytes(), use_list=False)]
        stacks = Path(folder) / "stacks"
        text = stacks.read_text(encoding="utf-8", errors="replace") if stacks.exists() else ""
        return [_unanswered(None if text.startswith(_TOO_LONG) else status, timeout_s, _where(text, config))]


def _run(asked: bytes, timeout_s: float) -> int | None:
    """Run the child; its exit status, None if it took too long. Its whole process group is ended."""
    quiet = {**os.environ, "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MPLBACKEND": "Agg"}  # no window
    use_one_thread(quiet)
    child = subprocess.Popen(
        [sys.executable, "-m", "pipeline.main.trial_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # whatever an environment prints is not ours
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**quiet, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        child.communicate(asked, timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
    return child.returncode


def _unanswered(status: int | None, timeout_s: float, where: str) -> Remark:
    if status is None:
        return Remark(
            f"the environment did not finish its trial in {timeout_s:g} seconds{where}: it hangs, waits or is very "
            f"slow; mend it, or raise env_settings.timeout_wait ({_SKIP})"
        )
    if status < 0:
        how = f"crashed by {signal.Signals(-status).name}"
    else:
        how = f"ended its process by itself with status {status}"
    return Remark(
        f"the environment {how} while it was tried{where}; expected an environment that raises an error instead: look "
        f"into what it calls there ({_SKIP})"
    )


def _where(stacks: str, config: RunConfig) -> str:
    """The innermost call in a file of the user's own; else the innermost of all."""
    calls = _FRAME.findall(stacks)
    own = tuple(str(folder) for folder in users_folders(config.source_folder))
    found = next((call for call in calls if call[0].startswith(own)), calls[0] if calls else None)
    return "" if found is None else f", at {found[0]}:{found[1]}, in {found[2]}"
