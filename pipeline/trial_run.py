"""A trial before a run starts: the same run on a small scale, in a process that `main/trial.py` starts.

The trial executes the run's own code from the coordinator down: an actor makes and steps environments, the environment
group checks the results, and each trainer is built for the environments' spaces and learns. Only sizes differ, all
hosts share one event loop, and nothing that users can see (writers, pages, recordings) is started. So the trial reports
a fault with the same message as the run would.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.config import BehaviorSettings, ConfigError, RunConfig
from headrace.config.brains import PLAYER
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import KeyPath
from headrace.config.hyperparameters import Hyperparameters
from headrace.pipeline.common.errors import RunError, RunFolderError
from headrace.pipeline.common.graph import acts
from headrace.pipeline.common.kept_state import OURS
from headrace.pipeline.common.seeds import choose_seed
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.references import key_of
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.reporting.progress import Progress, ProgressSnapshot
from headrace.pipeline.run import never_met
from headrace.pipeline.run_folder.checkpoint import CheckpointError
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.pipeline.run_folder.resuming import choose_checkpoint
from headrace.stages.environments.factory import HUMAN, EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup, maybe_await
from headrace.stages.errors import StageError, describe_error
from headrace.stages.exhibition.making import make_shown_group, why_not_shown
from headrace.stages.ghost import swap_balance
from headrace.stages.trainer.pacing import rows_per_update
from headrace.surroundings import absolute

TICKS = 200
"""Number of steps that each instance makes, if time allows; when an episode ends, the next one begins."""
ROWS = 128
"""Number of steps per update of Headrace's trainers; more if there are many instances."""
UPDATES = 16
"""Maximum number of updates that a trainer makes in these steps."""
ENOUGH_S = 8.0
"""Seconds after which a slow trial ends, provided that all trainers have made an update."""
_NEVER = 10**12
_RUN = "trial"


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding of the trial."""

    text: str
    serious: bool = True
    """True if the run can't work because of the finding; False if the finding may be intended or only has a cost."""
    key: KeyPath = ()
    """The YAML key at fault; empty if there is none."""


_FULL = os.strerror(errno.ENOSPC)


def try_run(config: RunConfig, limit_s: float = 30.0, own_folder: str | None = None) -> list[dict[str, Any]]:
    """Try out a run, and return remarks as plain data.

    Args:
        config: the run's configuration.
        limit_s: seconds after which the trial ends, even if some trainers have not learned yet.
        own_folder: the folder to write to; None for a temporary folder.
    """
    with (
        nullcontext(own_folder)
        if own_folder
        else tempfile.TemporaryDirectory(prefix="headrace-trial-", ignore_cleanup_errors=True)
    ) as folder:
        small, rows = _smaller(config, folder)
        with _warnings() as remarks:
            try:
                remarks[:0] = asyncio.run(_Trial(small, Path(folder), rows, limit_s).run())
            except (RunError, RunFolderError, CheckpointError, ConfigError) as error:
                remarks.insert(0, Remark(str(error)))
            except BaseException as error:
                remarks.insert(0, Remark(f"the trial run raised {describe_error(error)}"))
        if acts(config) and not any(remark.serious for remark in remarks):
            remarks += [Remark(each, serious=False) for each in _advice(config, EnvironmentRequest(small))]
    there, settings = str(Path(folder) / _RUN), config.checkpoint_settings
    real = str(Path(settings.results_dir) / settings.run_id)
    if any(_FULL in each.text for each in remarks):
        words = f"the trial run could not finish: {_FULL}: {Path(folder).parent}; set TMPDIR to a different folder"
        remarks = [Remark(words, serious=False), *(each for each in remarks if _FULL not in each.text)]
    found = [replace(each, text=each.text.replace(there, real)) for each in remarks]
    return [asdict(remark) for remark in dict.fromkeys(found)]


def _advice(config: RunConfig, request: EnvironmentRequest) -> Iterator[str]:
    """Yield remarks that the run would not make: those of the environment checker, and why no game is shown."""
    if config.environment_kind.advice is not None:
        yield from load_entry(config.environment_kind.advice)(request)
    if config.monitor is not None and not why_not_shown(config):
        try:
            group, _ = make_shown_group(request)
            asyncio.run(_begin(group))
        except StageError as error:
            yield f"monitor: the live page can't show the game: {error}"


async def _begin(group: EnvironmentGroup) -> None:
    try:
        await maybe_await(group.reset(0))
    finally:
        await maybe_await(group.close())


class _Trial:
    """A trial of a run.

    Args:
        config: the run's configuration, with smaller sizes.
        folder: the folder to write to.
        rows: number of steps after which a trainer has made an update.
        limit_s: as for `try_run`.
    """

    def __init__(self, config: RunConfig, folder: Path, rows: int, limit_s: float) -> None:
        self._config = config
        self._folder = folder
        self._rows = rows
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._stop = asyncio.Event()

    async def run(self) -> list[Remark]:
        """Run the trial; return remarks on why it failed, or on what it had no time to try."""
        playing, settings = self._config.checkpoint_settings.inference, self._config.checkpoint_settings
        played = RunFolder(absolute(settings.results_dir) / settings.run_id)
        folder = played if playing and played.path.is_dir() else RunFolder.create(self._folder, _RUN)
        with folder:
            checkpoint = choose_checkpoint(folder.checkpoints, playing=True) if playing else None
            plan = RunPlan(self._config, folder, choose_seed(self._config.env_settings.seed), checkpoint)
            async with Coordinator(plan, console=False, progress=Progress(enabled=False)) as coordinator:
                self._coordinator = coordinator
                await coordinator.run(self._stop, self._look)
        failure = coordinator.shutdown.failure
        if failure is not None:
            return [Remark(failure.message, key=key_of(failure, self._config))]
        return [Remark(words, serious=False) for words in self._missed(coordinator)]

    def _look(self, _: ProgressSnapshot) -> None:
        """End the trial when its time is up or all trainers have learned, but not before a behaviour has appeared."""
        behaviors = self._coordinator.starter.behaviors.values()
        passed_s = time.monotonic() - self._began_s
        learned = all(self._has_learned(state) for state in behaviors)
        if behaviors and (passed_s > self._limit_s or (learned and passed_s >= ENOUGH_S)):
            self._stop.set()

    def _has_learned(self, state: BehaviorState) -> bool:
        """Return True if a behaviour has made an update from enough steps, or does not learn."""
        return not state.settings.learns or (state.version > 0 and state.step >= self._rows)

    def _missed(self, coordinator: Coordinator) -> Iterator[str]:
        for name, state in coordinator.starter.behaviors.items():
            if not (self._has_learned(state) or self._config.checkpoint_settings.inference):
                yield (
                    f"not tried: the first update of {name}, because the trial ended after {self._limit_s:g} s, with "
                    f"only {state.step} steps collected (raise env_settings.timeout_wait for a longer trial)"
                )
        if missing := never_met(self._config, coordinator):
            yield missing


@contextmanager
def _warnings() -> Iterator[list[Remark]]:
    """Yield a list that collects Headrace's warnings, except for a warning about numbers that the trial changed."""
    found: list[Remark] = []

    def hear(record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and record.name != swap_balance.__name__:
            found.append(Remark(record.getMessage(), serious=False))

    handler = logging.Handler(logging.WARNING)
    handler.emit = hear  # type: ignore[method-assign]
    logger = logging.getLogger(OURS)
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


# The run's configuration with smaller sizes.


def _smaller(config: RunConfig, folder: str) -> tuple[RunConfig, int]:
    """Return the trial's configuration, with all hosts in this process, and the number of steps per update."""
    plain = config.to_plain()
    steps = TICKS * _with_few_instances(plain, config)
    rows = max(ROWS, steps // UPDATES)
    hosts = plain["pipeline"]["hosts"]
    used = {"replay": hosts["replay"]["kind"] is not None, "inference": config.pipeline.inference == "central"}
    chosen = ("actors", "learners", *(each for each in used if used[each]))
    here: dict[str, dict[str, Any]] = {which: {"kind": "inline"} for which in chosen}
    if used["replay"]:
        here["replay"] |= {"replicas": hosts["replay"]["replicas"]}
    leagues = [each["league"] for each in plain["behaviors"].values() if each["league"]]
    for learner in (each for league in leagues for each in league["learners"].values()):
        learner["actors"] = 1
    if leagues and not config.checkpoint_settings.inference:
        here["actors"] |= {"replicas": len(leagues)}
    plain["pipeline"]["hosts"] = here
    plain["pipeline"] |= {"statistics_writers": [], "max_wall_time_s": None}
    plain |= {"record": None, "evaluation": None, "monitor": None}
    plain["checkpoint_settings"] |= {"resume": False, "load_model": False, "force": False}
    plain["env_settings"] |= {"max_lifetime_restarts": 0}
    plain["inference"] |= {"watch": False, "episodes": 1, "video": config.inference.video and folder}
    if plain["replay"] is not None:
        plain["replay"]["speed"] = "max"
    for name, settings in config.behaviors.items():
        _shrink(plain["behaviors"][name], settings, steps, rows)
    if config.default_settings is not None:
        _shrink(plain["default_settings"], config.default_settings, steps, rows)
    return RunConfig.from_plain(plain, config.path), rows


def _with_few_instances(plain: dict[str, Any], config: RunConfig) -> int:
    """Set the number of instances to one for programs, and to two for `auto`; disable windows; return the number."""
    settings, section = plain["env_settings"], plain["environment"]
    if config.environment_kind.apart:
        settings |= {"num_envs": 1, "base_port": 0}
        if section is not None:
            section["num_envs"] = 1
    if section is None:
        return 1
    if section["num_envs"] == "auto":
        section["num_envs"] = 2
    if section["options"].get("render_mode") == HUMAN:
        del section["options"]["render_mode"]
    return int(section["num_envs"])


def _shrink(block: dict[str, Any], settings: BehaviorSettings, steps: int, rows: int) -> None:
    """Make a behaviour learn soon and end soon afterwards."""
    hyperparameters = settings.hyperparameters
    if isinstance(hyperparameters, Hyperparameters):
        block["hyperparameters"] = hyperparameters.small(rows).model_dump(mode="json", by_alias=True)
    else:  # a custom trainer, whose sizes stay unchanged
        rows = rows_per_update(settings, 1, off_policy=False)
    block |= {
        "max_steps": max(steps, 2 * rows),
        "checkpoint_interval": _NEVER,
        "summary_freq": _NEVER,
        "even_checkpoints": False,
        "stop_when": None,
    }
    if memory := block.get("network_settings", {}).get("memory"):
        memory["sequence_length"] = min(memory.get("sequence_length", rows), rows // 4)
    if block.get("self_play"):
        each = block["self_play"]
        each |= {key: min(each.get(key, rows), rows) for key in ("save_steps", "team_change", "swap_steps")}
    for brain in block.get("brain", ()):
        if brain["use"] == PLAYER:
            brain["use"] = "random"
