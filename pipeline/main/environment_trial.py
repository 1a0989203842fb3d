"""Tries a run's environments before training, in a process of its own, and says what is wrong with them."""

from __future__ import annotations

import re
import signal

from headrace.config import RunConfig
from headrace.pipeline.common.graph import offline_demonstrations
from headrace.pipeline.main.references import in_place
from headrace.pipeline.main.subprocess_call import NoAnswer, call_in_subprocess
from headrace.stages.environments.trial import Remark
from headrace.stages.loading import users_folders

_SKIP = "--no-env-check skips this check"
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def try_environments(config: RunConfig) -> tuple[list[str], list[str]]:
    """Try the environments of a configuration; returns errors and warnings, each with its place.

    Nothing is tried where nothing acts (a replay, demonstrations alone), nor for kinds without a trial, as Unity.
    """
    if config.environment_kind.trial is None or config.replay is not None or offline_demonstrations(config):
        return [], []
    timeout_s = config.env_settings.timeout_wait
    answer = call_in_subprocess("headrace.stages.environments.trial:try_kind", config, timeout_s)
    if isinstance(answer, NoAnswer):
        remarks = [_unanswered(answer.status, timeout_s, _where(answer.stacks, config))]
    else:
        remarks = [Remark(**each) for each in answer]
    texts = [(remark.serious, in_place(config, remark.key or ("environment",), remark.text)) for remark in remarks]
    return [text for serious, text in texts if serious], [text for serious, text in texts if not serious]


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
