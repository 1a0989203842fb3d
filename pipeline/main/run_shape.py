"""A run's shape: the automatic choices of hosts and environment instances that the configuration leaves open.

Processes pay off if the machine has a second core. Several actors pay off if an environment's instances step one after
another, the steps are slow, and there are free cores. A learner's core is free as well if stepping takes longer than
learning, because the learner then waits; when it has work, its process comes first (`ActorHost`). The actors share the
configured number of instances, so that learning does not depend on the machine. A separate process measures the time of
a step before the run: `probe` calls a function there with the run's configuration (`pipeline/roles/probe.py`). A
resumed run keeps the choices in its folder's configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from headrace.config import BehaviorSettings, EnvironmentSettings, RunConfig
from headrace.config.section_checks import persons_in
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import actor_learners, acts, decides_centrally, placements_after
from headrace.pipeline.common.process import usable_cores, usable_memory
from headrace.pipeline.control import HostFailed, ProbeAnswer, ProbeRequest
from headrace.pipeline.hosts.links import HostLinks
from headrace.pipeline.hosts.process import ProcessHost, start_process
from headrace.pipeline.hosts.protocol import HostPlan, how_it_ended
from headrace.pipeline.roles.sizes import kind_of_trainer
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.stages.environments.factory import no_screen
from headrace.stages.environments.stepping_time import StepCosts
from headrace.stages.errors import StageError
from headrace.stages.trainer.protocol import rows_per_update
from headrace.startup_context import absolute
from headrace.stop_requests import cleaned_up_by

log = logging.getLogger(__name__)

TICK_S = 2e-4
"""Seconds per tick for decisions, rows and messages, in addition to the time for stepping the environments."""
WORTH = 1.25
"""Minimum expected speed-up of the whole run for choosing more actors."""
ACTORS_MEMORY = 0.5
"""Share of the memory that several actors may use; the rest is for learners, replay memory and others."""
GROWTH = 1.1
"""Minimum speed-up (ratio of steps per second) for doubling the number of instances."""
MOST_INSTANCES = 64
ROWS_OF_EACH = 32
"""Minimum number of an update's rows from each instance, because shorter rollouts give worse estimates of returns."""
MOST_OFF_POLICY = 8
"""Maximum number of instances for a trainer that learns from each step many times, because learning then takes most of
the time.
"""
MOST_PROGRAMS = 16
_BUDGET_S = 5.0


# The shape is fixed before the start: a later actor would need a new way into each learner (docs/decisions/019).
def choose_shape(
    config: RunConfig,
    cores: int | None = None,
    ask: Callable[..., Sequence[Any]] | None = None,
    memory: float | None = None,
) -> tuple[RunConfig, str]:
    """Return the configuration with all automatic choices made, and a line that explains the choices.

    The line is empty if there was nothing to choose.

    Args:
        config: the configuration.
        cores: number of cores to use; None for those of this machine.
        ask: function to call in place of `probe`.
        memory: bytes of memory to use; None for those of this machine.
    """
    choice = _ShapeChoice(config, cores or usable_cores(), ask or probe, memory or usable_memory())
    config = choice.with_kinds(config)
    if config.env_settings.is_auto("num_envs") or (
        config.environment is not None and config.environment.is_auto("num_envs")
    ):
        config = choice.with_instances(config)
    if learners := actor_learners(config):
        config = with_hosts(config, "actors", replicas=len(learners))
        choice.remarks.append(f"{len(learners)} actor{'s' * (len(learners) > 1)}, each for one learner of a league")
    elif config.pipeline.hosts.actors.is_auto("replicas"):
        config = choice.with_actors(config)
    return config, f"Chosen for this machine: {'; '.join(choice.remarks)}." if choice.remarks else ""


class _ShapeChoice:
    """The choices for one run.

    Args:
        config: the configuration, of which the choices for an earlier part of the run are read.
        cores: number of cores to use.
        ask: calls a function in a separate process (`probe`).
        memory: bytes of memory to use.

    Attributes:
        remarks: explanations of the choices.
    """

    def __init__(self, config: RunConfig, cores: int, ask: Callable[..., Sequence[Any]], memory: float) -> None:
        self.remarks: list[str] = []
        self._kept = _kept(config)
        section = self._kept.get("environment") or self._kept.get("env_settings") or {}
        self._kept_instances = section.get("num_envs") if isinstance(section.get("num_envs"), int) else None
        self._cores = cores
        self._cores_text = f"{cores} core{'' if cores == 1 else 's'}"
        self._ask = ask
        self._memory = memory

    def _kept_hosts(self, which: str, key: str) -> Any:
        return self._kept.get("pipeline", {}).get("hosts", {}).get(which, {}).get(key)

    def with_kinds(self, config: RunConfig) -> RunConfig:
        """Choose the kinds of the actors' and learners' hosts."""
        chosen = [which for which in ("actors", "learners") if getattr(config.pipeline.hosts, which).is_auto("kind")]
        for which in chosen:
            kind = self._kept_hosts(which, "kind") or ("process" if self._cores > 1 else "inline")
            config = with_hosts(config, which, kind=kind)
        if config.checkpoint_settings.inference:  # nothing learns
            chosen = [which for which in chosen if which != "learners"]
        kinds = {getattr(config.pipeline.hosts, which).kind for which in chosen}
        if kinds:
            where = "in the main process" if kinds == {"inline"} else "in separate processes"
            self.remarks.append(f"{' and '.join(chosen)} {where} ({self._cores_text})")
        return config

    def with_instances(self, config: RunConfig) -> RunConfig:
        """Choose `num_envs`."""
        if _has_player(config):
            return with_num_envs(config, 1)
        if self._kept_instances is not None:
            self.remarks.append(f"num_envs {self._kept_instances}, as before")
            return with_num_envs(config, self._kept_instances)
        if config.environment is None or config.environment_kind.apart:
            number = min(max(1, self._cores - 1), MOST_PROGRAMS)
            self.remarks.append(f"num_envs {number}, because there are {self._cores_text}, one of them for learning")
            return with_num_envs(config, number)
        most = _most_instances(config)
        took = self._measured(config, [2**power for power in range(most.bit_length()) if 2**power <= most], GROWTH)
        if not took:
            self.remarks.append("num_envs 1, because the environment's step time could not be measured")
            return with_num_envs(config, 1)
        rates = {costs.instances: costs.instances / (TICK_S + costs.tick_s) for costs in took}
        number = next((count for count, rate in rates.items() if rate * GROWTH >= max(rates.values())), 1)
        ticks = {costs.instances: f"{costs.tick_s:.2g} s" for costs in took}
        others = ", ".join(f"{count}: {tick}" for count, tick in ticks.items() if count != number)
        self.remarks.append(
            f"num_envs {number}, with {ticks[number]} per step ({others or 'nothing else was measured'})"
        )
        return with_num_envs(config, number)

    # One actor either steps or decides; a second actor overlaps the two (docs/decisions/029).
    def with_actors(self, config: RunConfig) -> RunConfig:
        """Choose the number of actors that share the instances."""
        section = config.environment
        if config.pipeline.deterministic:
            self.remarks.append("1 actor, because the run is deterministic")
        if section is None or section.num_envs == 1 or not _may_share(config):
            return config
        whole = section.num_envs
        before, share = self._kept_hosts("actors", "replicas"), self._kept_instances
        if isinstance(before, int) and share is not None and before * share == whole:
            if before > 1:
                self.remarks.append(f"{before} actors with {share} environments each, as before")
            return _shared(config, section, before)
        learners = max(1, sum(settings.learns for settings in config.behaviors.values()))
        free = self._cores - min(learners, max(1, self._cores // 2))
        waits = not _learns_off_policy(config)
        if free < 2 and not (waits and self._cores > 1):
            return config
        took = self._measured(config, [max(1, whole // 2), whole], 0.0)
        if len(took) < 2:
            return config
        half, full = took
        if waits and full.learning_s < full.tick_s:
            free = self._cores
        if free < 2:
            self.remarks.append(
                f"1 actor for {whole} environments, because learning from a step takes longer than the step"
            )
            return config
        of_learners = [settings.max_steps for settings in config.behaviors.values() if settings.learns]
        ticks = max(of_learners, default=(config.default_settings or BehaviorSettings()).max_steps) / whole
        numbers = [number for number in range(1, free + 1) if whole % number == 0]
        of_each = {number: _between(half, full, whole // number) for number in numbers}
        process_s = _between(half, full, 0).start_s
        fitting = [n for n in numbers if n == 1 or n * of_each[n].memory <= ACTORS_MEMORY * self._memory]
        # The cores start one more process for each further actor.
        run = {
            number: ticks * (TICK_S + of_each[number].tick_s)
            + of_each[number].start_s
            + process_s * (number - 1) / self._cores
            for number in fitting
        }
        actors = next((number for number, seconds in run.items() if seconds <= 1.1 * min(run.values())), 1)
        lacking = ", and memory suffices for no more" if actors == fitting[-1] < numbers[-1] else ""
        if run[1] < WORTH * run[actors]:
            self.remarks.append(
                f"1 actor for {whole} environments, because a step of all of them takes {full.tick_s:.2g} s and "
                f"more actors, which take time to start, would hardly make the run faster{lacking}"
            )
            return config
        self.remarks.append(
            f"{actors} actors with {whole // actors} of the {whole} environments each, because a step of all of them "
            f"takes {full.tick_s:.2g} s and there are {self._cores_text}"
            + (", which the learner may use first" if actors == self._cores else "")
            + lacking
        )
        return _shared(config, section, actors)

    def _measured(self, config: RunConfig, counts: list[int], gain: float) -> list[StepCosts]:
        """Return what each number of instances costs; empty after a failure.

        The run then reports why.
        """
        function = "headrace.stages.environments.stepping_time:measure_stepping"
        try:
            answer = self._ask(config, function, counts, gain, _BUDGET_S, timeout_s=config.env_settings.timeout_wait)
        except ProbeError as error:
            log.debug("the environment's step time could not be measured: %s", error)
            return []
        found = [StepCosts(*costs) for costs in answer]
        # The environment may have changed the clock.
        return [costs._replace(tick_s=max(0.0, costs.tick_s), start_s=max(0.0, costs.start_s)) for costs in found]


def _between(half: StepCosts, full: StepCosts, instances: int) -> StepCosts:
    """Return the costs of this number of instances, given those of half of the instances and of all."""

    def line(low: float, high: float) -> float:
        # At most the mean: instances that slow each other down would otherwise make a smaller cost negative.
        each = min(max(0.0, (high - low) / (full.instances - half.instances)), high / full.instances)
        return high - each * (full.instances - instances)

    costs = [line(low, high) for low, high in zip(half[1:], full[1:], strict=True)]
    return StepCosts(instances, *costs)


def _may_share(config: RunConfig) -> bool:
    """Return True if several actors may replace a single one."""
    learns = acts(config) and not config.checkpoint_settings.inference
    plain = not decides_centrally(config) and not placements_after(config, "agent_processor", in_main=False)
    processes = config.pipeline.hosts.actors.kind == "process"
    return learns and plain and processes and not _has_player(config) and config.environment_kind.one_after_another


def _has_player(config: RunConfig) -> bool:
    """Return True if a person plays, which allows only one environment instance."""
    return any(brain.name == "player" for settings in config.behaviors.values() for brain in settings.brain)


def _most_instances(config: RunConfig) -> int:
    """Return the maximum number of instances at which each still provides enough rows for an update."""
    most = MOST_INSTANCES
    for name, settings in config.behaviors.items():
        if settings.learns and (off_policy := _is_off_policy(config, name)) is not None:
            most = min(most, MOST_OFF_POLICY if off_policy else rows_per_update(settings, 1, False) // ROWS_OF_EACH)
    return max(1, most)


def _learns_off_policy(config: RunConfig) -> bool:
    return any(settings.learns and _is_off_policy(config, name) for name, settings in config.behaviors.items())


def _is_off_policy(config: RunConfig, behavior: str) -> bool | None:
    """Return True if a behaviour's trainer learns from steps of any age; None if there is no such trainer."""
    try:
        return kind_of_trainer(config, behavior).off_policy
    except StageError:  # the run's start reports an unknown trainer
        return None


def _kept(config: RunConfig) -> dict[str, Any]:
    """Return the configuration saved in a resumed or played run's folder; empty if there is none."""
    settings = config.checkpoint_settings
    path = absolute(settings.results_dir) / settings.run_id / CONFIGURATION
    if not (settings.resume or settings.inference):
        return {}
    try:
        kept: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
        RunConfig.from_plain(kept)
    except Exception:  # missing, from another version or foreign: choose again
        return {}
    return kept


def with_hosts(config: RunConfig, which: str, **changes: Any) -> RunConfig:
    """Return the configuration with changes to a section of `pipeline.hosts`; evaluation inherits the actors' kind."""
    hosts = config.pipeline.hosts
    changed = {which: getattr(hosts, which).model_copy(update=changes)}
    if which == "actors" and "kind" in changes and not hosts.evaluation._is_set("kind"):
        changed["evaluation"] = hosts.evaluation.model_copy(update={"kind": changes["kind"]})
    hosts = hosts.model_copy(update=changed)
    return config.model_copy(update={"pipeline": config.pipeline.model_copy(update={"hosts": hosts})})


def with_num_envs(config: RunConfig, number: int) -> RunConfig:
    """Return the configuration with this number of instances for each actor."""
    update: dict[str, Any] = {"env_settings": config.env_settings.model_copy(update={"num_envs": number})}
    if config.environment is not None:
        update["environment"] = config.environment.model_copy(update={"num_envs": number})
    return config.model_copy(update=update)


def _shared(config: RunConfig, environment: EnvironmentSettings, actors: int) -> RunConfig:
    share = environment.model_copy(update={"num_envs": environment.num_envs // actors})
    return with_hosts(config.model_copy(update={"environment": share}), "actors", replicas=actors)


# Viewing a run with `--inference`, in a window or as video, which changes how its environments are arranged.


def for_viewers(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to show the game as `inference.watch` or `inference.video` asks.

    Raises:
        RunError: if the game can't be shown that way.
    """
    settings = config.inference
    if not config.checkpoint_settings.inference or not (settings.watch or settings.video):
        return config
    option = "--watch" if settings.watch else "--video"
    if settings.watch and settings.video:
        raise RunError(
            "--watch and --video: an environment either opens a window or returns images; use only one of the two"
        )
    if persons_in(config):
        raise RunError(f"{option}: brain 'player' plays on the live page, which shows the game; omit one of the two")
    from headrace.stages.exhibition.film import for_one_film, for_one_window

    try:
        config = for_one_window(config) if settings.watch else for_one_film(config)
    except StageError as error:
        raise RunError(f"{option}: {error}") from error
    if settings.watch and no_screen():
        raise RunError(f"--watch opens a window, but {no_screen()}")
    return config


_START_S = 60.0
"""Seconds that the process may take to start and to import its modules."""


class ProbeError(Exception):
    """A probe gave no answer; the message says why."""


def probe(config: RunConfig, function: str, *arguments: Any, timeout_s: float) -> tuple[Any, ...]:
    """Call an async function with a configuration and more arguments; return the items of its result.

    Call this in a thread without a running event loop. If the thread is abandoned, the process ends.

    Args:
        config: the function's first argument.
        function: `module:name`; the function's other arguments and its result's items are msgpack types.
        arguments: the other arguments.
        timeout_s: time limit in seconds, in addition to the time that a host may take to start.

    Raises:
        ProbeError: if the function raises, crashes, or takes too long.
    """
    return asyncio.run(_ask(config, ProbeRequest(function, arguments), timeout_s + _START_S))


async def _ask(config: RunConfig, request: ProbeRequest, timeout_s: float) -> tuple[Any, ...]:
    path = None if config.path is None else str(config.path)
    host = await start_process(HostPlan("probe", "probe", config.to_plain(), path, "", 0), HostLinks())
    with cleaned_up_by(host.kill):
        host.control.send(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await _answer(host)
        except TimeoutError:
            raise ProbeError(f"no answer within {timeout_s:g} s: {await host.describe()}") from None
        finally:
            host.kill()
            await host.wait()
            host.close()


async def _answer(host: ProcessHost) -> tuple[Any, ...]:
    async for message in host.control.receive():
        if isinstance(message, ProbeAnswer):
            return message.values
        if isinstance(message, HostFailed):
            raise ProbeError(message.message)
    raise ProbeError(f"its process {how_it_ended(await host.wait())}")
