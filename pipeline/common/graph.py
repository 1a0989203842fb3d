"""The graph of a run, derived from its configuration: names of hosts and stages, routes of trajectories.

Pure: nothing is started here. Main wires up the run from this graph; `--validate` prints it (`command.description`).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from headrace.config import RunConfig, StagePlacement
from headrace.config.host_kinds import joined_directly

MAIN = "main"
"""Name of the main process as a host that runs stages."""
ACTOR = "actor"
"""The actor stage's name."""
GHOST = "ghost"
"""The self-play stage's name; all behaviours share one part of a checkpoint."""
LEAGUE = "league"
"""The league stage's name; all learners share one part of a checkpoint."""
TRAINER = "trainer"
"""The name of each learner's trainer stage."""
REPLAY_SHARD = "replay_shard"
"""The name of the stage in each shard of a replay buffer."""
INFERENCE = "inference"
"""The name of the host that decides for all actors, and of its stage."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one behaviour's trajectories from the actors to its trainer."""

    behavior: str
    self_play: bool
    before_ghost: tuple[str, ...]
    """Names of the custom stages in main after the agent processor."""
    after_ghost: tuple[str, ...]
    """Names of the custom stages in main after the ghost stage."""
    joined: bool
    """True if main stands between actors and learner because hosts of their kinds can't be joined directly."""
    through_main: bool
    """True if trajectories pass through main; otherwise they go straight from actor to learner."""
    league: bool = False
    """True for a learner of a league."""

    @property
    def shared(self) -> str:
        """The name of the stage that other behaviours' routes share; empty if there is none."""
        return GHOST if self.self_play else LEAGUE if self.league else ""

    def straight(self, copied: bool = False) -> Route:
        """Return the route of a recording taken at the trainer's input, which skips the stages before the trainer.

        Args:
            copied: True if main copies it to other trainers.
        """
        return replace(
            self, self_play=False, league=False, before_ghost=(), after_ghost=(), through_main=self.joined or copied
        )


def placements_after(config: RunConfig, after: str, in_main: bool) -> list[StagePlacement]:
    """Return the custom stages placed after a stage, in the YAML's order, either in main or in the actor hosts.

    The ghost stage runs in main, so all stages after it do too.
    """
    return [p for p in config.pipeline.stages if p.after == after and (p.host == "main" or after == "ghost") == in_main]


def route(config: RunConfig, behavior: str) -> Route:
    """Return the route of one behaviour's trajectories."""

    def names(after: str) -> tuple[str, ...]:
        found = placements_after(config, after, in_main=True)
        return tuple(p.name for p in found if p.behaviors is None or behavior in p.behaviors)

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
    """Return the behaviour whose trajectories this one imitates live; None if it imitates none."""
    return config.behavior_settings(behavior).teacher


def students_of(config: RunConfig, behavior: str) -> list[str]:
    """Return the behaviours that imitate this one live; none in a run that does not learn."""
    if config.checkpoint_settings.inference:
        return []
    learners = (name for name, settings in config.behaviors.items() if settings.learns)
    return [name for name in learners if teacher_of(config, name) == behavior]


def offline_demonstrations(config: RunConfig) -> dict[str, str]:
    """Return the `demo_path` of each behaviour if all learn only from demonstrations and no agent acts."""
    if config.replay is not None or config.checkpoint_settings.inference:
        return {}
    paths = {name: settings.demonstrations for name, settings in config.behaviors.items() if settings.learns}
    alone = {name: path for name, path in paths.items() if path is not None}
    return alone if len(alone) == len(config.behaviors) else {}


def acts(config: RunConfig) -> bool:
    """Return True if a run has environments rather than a recording or demonstrations."""
    return config.replay is None and not offline_demonstrations(config)


def decides_centrally(config: RunConfig) -> bool:
    """Return True if one host decides for all actors."""
    return acts(config) and config.pipeline.inference == "central"


def actor_names(config: RunConfig) -> list[str]:
    """Return the names of the actor hosts; a recording or demonstrations take the place of a single actor."""
    if not acts(config):
        return ["actor-0"]
    return [f"actor-{replica}" for replica in range(config.pipeline.hosts.actors.replicas)]


def league_seats(config: RunConfig) -> list[str]:
    """Return for each actor the learner of a league that it plays for; empty without a league, or in inference."""
    if config.checkpoint_settings.inference:
        return []
    leagues = ((name, settings.league) for name, settings in config.behaviors.items())
    return [name for name, found in leagues if found for _ in range(found.learners[found.learner].actors)]


def learner_name(behavior: str) -> str:
    """Return the name of a behaviour's learner host."""
    return f"learner-{behavior}"


def shard_names(config: RunConfig, behavior: str) -> list[str]:
    """Return the names of the hosts that hold a behaviour's replay buffer; none if the learner holds it."""
    hosts, settings = config.pipeline.hosts.replay, config.behavior_settings(behavior)
    learns = settings.learns and not config.checkpoint_settings.inference
    if hosts.kind is None or settings.trainer_type != "sac" or not learns:
        return []
    return [shard_name(behavior, shard) for shard in range(hosts.replicas)]


def shard_name(behavior: str, shard: int) -> str:
    """Return the name of the host of one shard."""
    return f"replay-{behavior}-{shard}"


def saved_shards(parts: Container[str], behavior: str) -> list[str]:
    """Return the names of the hosts that held a behaviour's replay buffer when these checkpoint parts were made."""
    numbers = itertools.takewhile(
        lambda shard: part_name(REPLAY_SHARD, shard_name(behavior, shard)) in parts, itertools.count()
    )
    return [shard_name(behavior, shard) for shard in numbers]


def main_stage_name(stage: str, behavior: str) -> str:
    """Return the name of a behaviour's instance of a stage in main."""
    return f"{stage}-{behavior}"


def part_name(stage: str, host: str) -> str:
    """Return the name of a stage's part of a checkpoint: unique over all hosts and the same in each run."""
    return f"{stage}@{host}"


def expected_parts(config: RunConfig, behaviors: Iterable[str], trainers_only: bool = False) -> set[str]:
    """Return the names of all parts of a complete checkpoint.

    Args:
        config: the run's configuration.
        behaviors: the behaviours that are trained.
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
        found = route(config, behavior)
        parts |= {
            part_name(main_stage_name(stage, behavior), MAIN) for stage in (*found.before_ghost, *found.after_ghost)
        }
        if found.shared:
            parts.add(part_name(found.shared, MAIN))
    return parts
