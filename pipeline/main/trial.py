"""Tries a run in a separate process before it starts, and reports what is wrong with it (`pipeline/trial_run.py`).

The caller receives an answer whatever happens in that process. Main therefore imports no environment, and an
environment that hangs, crashes, prints or waits for input costs at most its time limit.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config import RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import dotted
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.section_checks import persons_in
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import acts
from headrace.pipeline.hosts.early_children import learners_of, modules_of_learner
from headrace.pipeline.main.references import in_place
from headrace.pipeline.main.run_shape import for_viewers
from headrace.pipeline.main.subprocess_call import NoAnswer, call_in_subprocess
from headrace.process_tree import describe_status
from headrace.stages.environments.factory import check_window, no_screen
from headrace.stages.errors import StageError
from headrace.stages.loading import users_folders

_CHILD = "headrace.pipeline.trial_run:try_run"
_FOR_PROGRAMS = 2
"""Time limit for trying a program, as a multiple of `env_settings.timeout_wait`, because the program's start alone may
take one `timeout_wait`."""
_SKIP = "--no-env-check skips this check"
_ROOM = re.compile(r"\bstages[/\\\\](\w+)[/\\\\]")
_COMPUTING = ("policy", "trainer")
"""Folders in `stages/` whose code may be slow for a good reason."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def try_run(config: RunConfig) -> tuple[list[str], list[str]]:
    """Try a run; return errors, each with its location, and warnings, which also list what was not tried."""
    try:
        config = for_viewers(config)
        if config.environment is not None:
            check_window(config.environment.options, config.environment.num_envs)
        if config.environment_kind.preflight is not None and acts(config):
            load_entry(config.environment_kind.preflight)(config)
        why_not = _untried_environment(config)
    except (RunError, StageError) as error:
        return [str(error)], []
    if why_not:
        return [], [f"not tried: {why_not}; so the network and the update were not tried either"]
    timeout_s = config.env_settings.timeout_wait * (_FOR_PROGRAMS if config.environment_kind.apart else 1)
    imports = ["torch", *(module for each in learners_of(config) for module in modules_of_learner(config, each))]
    answer = call_in_subprocess(_CHILD, config, timeout_s, timeout_s / 2, imports=imports, with_folder=True)
    if isinstance(answer, NoAnswer):
        answer = [without_answer(answer, timeout_s, config)]
    left_out = [f"not tried: {', '.join(names)}"] if (names := [*_left_out(config)]) else []
    texts = [(each["serious"], in_place(config, tuple(each["key"]), each["text"])) for each in answer]
    return (
        [text for serious, text in texts if serious],
        [*(text for serious, text in texts if not serious), *left_out],
    )


def _untried_environment(config: RunConfig) -> str:
    """Return why the run's environment can't be tried; empty if it can."""
    kind, settings = config.environment_kind, config.env_settings
    if not (kind.apart and acts(config)):
        return ""
    if settings.env_path is None:
        return f"the environment, which waits for {kind.editor}"
    if "no_graphics" in kind.engine_settings and not config.engine_settings.no_graphics and (reason := no_screen()):
        why, _, _ = reason.partition(". ")
        return (
            f"the game {settings.env_path}, which opens a window, because {why} (--no-graphics tries the game without "
            "one)"
        )
    return ""


def _left_out(config: RunConfig) -> Iterator[str]:
    """Yield the features of a run that its trial leaves out."""
    hosts, settings = config.pipeline.hosts, config.checkpoint_settings
    if settings.resume:
        yield "the checkpoint that the run resumes from (checkpoint_settings.resume)"
    if hosts.learners.replicas > 1 and not settings.inference:
        yield f"running {hosts.learners.replicas} replicas of a learner together (pipeline.hosts.learners.replicas)"
    if any(each.kind is not None and HOST_KINDS[each.kind].on_ray for _, each in hosts):
        yield "hosts on Ray (pipeline.hosts)"
    if config.pipeline.statistics_writers:
        yield "statistics writers (pipeline.statistics_writers)"
    if config.evaluation is not None and not settings.inference:
        yield "evaluation"
    if config.record is not None:
        yield "recording (record)"
    for path, _ in persons_in(config):
        yield f"the person who plays ({dotted(path)}.brain), replaced by random actions"


def without_answer(answer: NoAnswer, timeout_s: float, config: RunConfig) -> Mapping[str, Any]:
    """Return the finding to report about a trial that gave no answer."""
    if answer.error:
        return {"text": answer.error, "serious": True, "key": ()}
    innermost, where = _ROOM.search(answer.stacks), _where(answer.stacks, config)
    if answer.status is None and innermost is not None and innermost[1] in _COMPUTING:
        text = f"not tried: the first update; networks of this size take more than {timeout_s:g} s"
        return {"text": text, "serious": False, "key": ()}
    if answer.status is None:
        text = (
            f"the trial run did not finish within {timeout_s:g} seconds{where}: the environment hangs, waits or is "
            f"very slow; fix it, or raise env_settings.timeout_wait ({_SKIP})"
        )
    else:
        ended = f"ended its process with status {describe_status(answer.status)}"
        how = ended if answer.status >= 0 else f"crashed with {signal.Signals(-answer.status).name}"
        text = (
            f"the environment {how} while it was tried{where}; an environment must raise an error instead: check what "
            f"the environment calls there ({_SKIP})"
        )
    return {"text": text, "serious": True, "key": ("environment",)}


def _where(stacks: str, config: RunConfig) -> str:
    """Return the innermost call in the user's own files, or the innermost of all calls if none is in those files."""
    calls = _FRAME.findall(stacks)
    own = tuple(str(folder) for folder in users_folders(config.source_folder))
    found = next((call for call in calls if call[0].startswith(own)), calls[0] if calls else None)
    return "" if found is None else f", at {found[0]}:{found[1]}, in {found[2]}"
