"""A run's graph, derived from its configuration: the names of hosts and stages, and the routes of trajectories.

This module starts nothing. Main wires up the run from this graph; `--validate` prints it (`command.description`).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from headrace.config import RunConfig, StagePlacement
from headrace.config.host_kinds import joined_directly

MAIN = "main"
"""Host name of the main process, which also runs stages."""
ACTOR = "actor"
"""Name of the actor stage."""
GHOST = "ghost"
"""Name of the self-play stage. All behaviours share it, so it has one part in a checkpoint."""
LEAGUE = "league"
"""Name of the league stage. All learners share it, so it has one part in a checkpoint."""
TRAINER = "trainer"
"""Name of the trainer stage, which runs in each learner host."""
REPLAY_SHARD = "replay_shard"
"""Name of the stage that holds one shard of a replay buffer."""
INFERENCE = "inference"
"""Name of the central inference host, and of its stage."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route that one behaviour's trajectories take from the actors to its trainer."""

    behavior: str
    self_play: bool
    before_ghost: tuple[str, ...]
    """Names of the custom stages in main that follow the agent processor and precede the ghost stage."""
    after_ghost: tuple[str, ...]
    """Names of the custom stages in main that follow the ghost stage."""
    joined: bool
    """True if main relays trajectories because actor and learner hosts of these kinds can't be connected directly."""
    through_main: bool
    """True if trajectories pass through main; otherwise they go straight from actor to learner."""
    league: bool = False
    """True if the behaviour is a league learner."""

    @property
    def shared(self) -> str:
        """Name of the stage that this route shares with other behaviours' routes; empty if it shares none."""
        return GHOST if self.self_play else LEAGUE if self.league else ""

    def straight(self, copied: bool = False) -> Route:
        """Return the route for a recording taken at the trainer's input, without the stages before the trainer.

        Args:
            copied: True if main also copies the recording to other trainers.
        """
        return replace(
            self, self_play=False, league=False, before_ghost=(), after_ghost=(), through_main=self.joined or copied
        )


def placements_after(config: RunConfig, after: str, in_main: bool) -> list[StagePlacement]:
    """Return the custom stages placed after a stage, in YAML order: those in main, or those in the actor hosts.

    The ghost stage runs in main, so all stages after it do too.
    """
    return [p for p in config.pipeline.stages if p.after == after and (p.host == "main" or after == "ghost") == in_main]


def route(config: RunConfig, behavior: str) -> Route:
    """Return the route that a behaviour's trajectories take."""

    def names(after: str) -> tuple[str, ...]:
        placements = placements_after(config, after, in_main=True)
        return tuple(p.name for p in placements if p.behaviors is None or behavior in p.behaviors)

    settings = config.behavior_settings(behavior)
    self_play = settings.self_play is not None and not config.checkpoint_settings.inference
    league = settings.league is not None and not config.checkpoint_settings.inference
    hosts = config.pipeline.hosts
    before, after = names("agent_processor"), names("ghost")
    if not settings.learns:  # its trajectories end in main, which counts the steps
        return Route(behavior, False, before if settings.broadcast else (), (), False, True)
    joined = not joined_directly(hosts.actors.kind, hosts.learners.kind)
    through_main = self_play or league or bool(before or after) or joined or bool(students_of(config, behavior))
    return Route(behavior, self_play, before, after, joined, through_main, league)


def teacher_of(config: RunConfig, behavior: str) -> str | None:
    """Return the behaviour whose live trajectories this behaviour imitates; None if it has no teacher."""
    return config.behavior_settings(behavior).teacher


def students_of(config: RunConfig, behavior: str) -> list[str]:
    """Return the behaviours that imitate this behaviour's live trajectories; empty in a run that does not train."""
    if config.checkpoint_settings.inference:
        return []
    learners = (name for name, settings in config.behaviors.items() if settings.learns)
    return [name for name in learners if teacher_of(config, name) == behavior]


def offline_demonstrations(config: RunConfig) -> dict[str, str]:
    """Return each behaviour's `demo_path` if all behaviours learn only from demonstrations; otherwise an empty dict."""
    if config.replay is not None or config.checkpoint_settings.inference:
        return {}
    paths = {name: settings.demonstrations for name, settings in config.behaviors.items() if settings.learns}
    alone = {name: path for name, path in paths.items() if path is not None}
    return alone if len(alone) == len(config.behaviors) else {}


def acts(config: RunConfig) -> bool:
    """Return True if a run steps environments instead of reading a recording or demonstrations."""
    return config.replay is None and not offline_demonstrations(config)


def decides_centrally(config: RunConfig) -> bool:
    """Return True if one inference host chooses actions for all actors."""
    return acts(config) and config.pipeline.inference == "central"


def actor_names(config: RunConfig) -> list[str]:
    """Return the actor hosts' names. A recording or demonstrations that replace the environments need only one host."""
    if not acts(config):
        return ["actor-0"]
    return [f"actor-{replica}" for replica in range(config.pipeline.hosts.actors.replicas)]


def actor_learners(config: RunConfig) -> list[str]:
    """Return, for each actor, the league learner that it plays for; empty without a league, or in inference mode."""
    if config.checkpoint_settings.inference:
        return []
    leagues = ((name, settings.league) for name, settings in config.behaviors.items())
    return [name for name, league in leagues if league for _ in range(league.learners[league.learner].actors)]


def learner_name(behavior: str) -> str:
    """Return the name of a behaviour's learner host."""
    return f"learner-{behavior}"


def shard_names(config: RunConfig, behavior: str) -> list[str]:
    """Return the names of the hosts that hold a behaviour's replay buffer; empty if the learner holds the buffer."""
    hosts, settings = config.pipeline.hosts.replay, config.behavior_settings(behavior)
    learns = settings.learns and not config.checkpoint_settings.inference
    if hosts.kind is None or settings.trainer_type != "sac" or not learns:
        return []
    return [shard_name(behavior, shard) for shard in range(hosts.replicas)]


def shard_name(behavior: str, shard: int) -> str:
    """Return the host name of one replay shard."""
    return f"replay-{behavior}-{shard}"


def saved_shards(parts: Container[str], behavior: str) -> list[str]:
    """Return the names of the hosts that held a behaviour's replay buffer when these checkpoint parts were written."""
    numbers = itertools.takewhile(
        lambda shard: part_name(REPLAY_SHARD, shard_name(behavior, shard)) in parts, itertools.count()
    )
    return [shard_name(behavior, shard) for shard in numbers]


def main_stage_name(stage: str, behavior: str) -> str:
    """Return the name of one behaviour's instance of a stage in main."""
    return f"{stage}-{behavior}"


def part_name(stage: str, host: str) -> str:
    """Return the name of a stage's checkpoint part, which is unique across hosts and the same in every run."""
    return f"{stage}@{host}"


def expected_parts(config: RunConfig, behaviors: Iterable[str], trainers_only: bool = False) -> set[str]:
    """Return the names of all parts that make up a complete checkpoint.

    Args:
        config: the run's configuration.
        behaviors: names of the behaviours in the run.
        trainers_only: True if a recording goes straight to the trainers and no other stage runs.
    """
    behaviors = [*behaviors]
    learning = [behavior for behavior in behaviors if config.behavior_settings(behavior).learns]
    parts = {part_name(TRAINER, learner_name(behavior)) for behavior in learning}
    parts |= {part_name(REPLAY_SHARD, shard) for behavior in behaviors for shard in shard_names(config, behavior)}
    if trainers_only:
        return parts
    parts |= {
        part_name(placement.name, actor)
        for actor in actor_names(config)
        for placement in placements_after(config, "agent_processor", in_main=False)
    }
    for behavior in behaviors:
        way = route(config, behavior)
        parts |= {part_name(main_stage_name(stage, behavior), MAIN) for stage in (*way.before_ghost, *way.after_ghost)}
        if way.shared:
            parts.add(part_name(way.shared, MAIN))
    return parts
