"""The pipeline that a configuration describes: which hosts, which stages in them, which queues between them.

Pure: nothing is started here. `--validate` prints it, and the run is wired by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from config import Curriculum, EnvironmentParameter, RunConfig, StagePlacement

ACTOR_STAGES = "environment → agent_processor"
GHOST = "ghost"
"""Name of self-play's part of checkpoints: there is one of all behaviours."""
TRAINER = "trainer"
"""Name of the trainer stage, which each learner has one of."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way of one behaviour's trajectories from the actors to its trainer."""

    behavior: str
    self_play: bool
    before_ghost: tuple[str, ...]
    """Custom stages in main that stand after the agent processor."""
    after_ghost: tuple[str, ...]
    """Custom stages in main that stand after the ghost stage."""
    joined: bool
    """Whether main has to join several inline actors for one learner process."""
    through_main: bool
    """Whether trajectories pass through main; else they go straight from actor to learner."""

    def straight(self, copied: bool = False) -> Route:
        """The way of a recording taken at the trainer's inlet: the stages before the trainer are behind it.

        Args:
            copied: whether main has to copy it to other trainers.
        """
        return Route(
            self.behavior,
            self_play=False,
            before_ghost=(),
            after_ghost=(),
            through_main=self.joined or copied,
            joined=self.joined,
        )


def placed(config: RunConfig, after: str, in_main: bool) -> list[StagePlacement]:
    """The placements after a stage, in the YAML's order, in main or in the actor hosts.

    The ghost stage lives in main, so what follows it does too.
    """
    return [p for p in config.pipeline.stages if p.after == after and (p.host == "main" or after == "ghost") == in_main]


def route(config: RunConfig, behavior: str) -> Route:
    """The way of one behaviour's trajectories."""

    def names(after: str) -> tuple[str, ...]:
        found = placed(config, after, in_main=True)
        return tuple(p.name for p in found if p.behaviors is None or behavior in p.behaviors)

    self_play = config.behavior_settings(behavior).self_play is not None and not config.checkpoint_settings.inference
    hosts = config.pipeline.hosts
    before, after = names("agent_processor"), names("ghost")
    joined = hosts.actors.kind == "inline" and hosts.learners.kind == "process"
    through_main = self_play or bool(before or after) or joined or bool(students_of(config, behavior))
    return Route(behavior, self_play, before, after, joined, through_main)


def teacher_of(config: RunConfig, behavior: str) -> str | None:
    """The behaviour whose trajectories this one imitates as they come; None if it imitates none."""
    return config.behavior_settings(behavior).teacher


def students_of(config: RunConfig, behavior: str) -> list[str]:
    """The behaviours that imitate this one as it acts; none where nothing is learned."""
    if config.checkpoint_settings.inference:
        return []
    return [name for name in config.behaviors if teacher_of(config, name) == behavior]


def demonstrated(config: RunConfig) -> dict[str, str]:
    """The behaviours that learn from demonstrations alone, without acting, and where these are."""
    if config.replay is not None or config.checkpoint_settings.inference:
        return {}
    paths = {name: settings.demonstrations for name, settings in config.behaviors.items()}
    return {name: path for name, path in paths.items() if path is not None}


def actor_names(config: RunConfig) -> list[str]:
    """Names of the actor hosts; a recording, or demonstrations, stand in one actor's place."""
    if config.replay is not None or demonstrated(config):
        return ["actor-0"]
    return [f"actor-{replica}" for replica in range(config.pipeline.hosts.actors.replicas)]


def learner_name(behavior: str) -> str:
    """Name of a behaviour's learner host."""
    return f"learner-{behavior}"


def main_stage_name(stage: str, behavior: str) -> str:
    """Name of a stage in main: there is one of each behaviour's own."""
    return f"{stage}-{behavior}"


def part_name(stage: str, host: str) -> str:
    """Name of a stage's part of a checkpoint: unique over all hosts and the same in each run."""
    return f"{stage}@{host}"


def expected_parts(config: RunConfig, behaviors: Iterable[str], trainers_only: bool = False) -> set[str]:
    """Names of all parts that make a checkpoint whole.

    Args:
        config: the run's configuration.
        behaviors: the behaviours that are trained.
        trainers_only: a recording goes straight to the trainers, so no other stage runs.
    """
    parts = {part_name(TRAINER, learner_name(behavior)) for behavior in behaviors}
    if trainers_only:
        return parts
    parts |= {
        part_name(placement.name, actor)
        for actor in actor_names(config)
        for placement in placed(config, "agent_processor", in_main=False)
    }
    for behavior in behaviors:
        way = route(config, behavior)
        parts |= {
            part_name(main_stage_name(stage, behavior), "main") for stage in (*way.before_ghost, *way.after_ghost)
        }
        if way.self_play:
            parts.add(part_name(GHOST, "main"))
    return parts


def describe(config: RunConfig) -> str:
    """The pipeline in lines for people."""
    hosts = config.pipeline.hosts
    lines = []
    if config.replay is not None:
        lines.append(f"replay of {', '.join(config.replay.streams)} (speed {config.replay.speed})")
    elif demonstrated(config):
        lines.append(f"demonstrations for {', '.join(demonstrated(config))}, over and over; nobody acts")
    else:
        lines.append(
            f"{hosts.actors.replicas} actor host{'s' if hosts.actors.replicas > 1 else ''} ({hosts.actors.kind}): "
            + " → ".join([ACTOR_STAGES, *(p.name for p in placed(config, "agent_processor", in_main=False))])
        )
        lines.append(f"  environment: {_played(config)}")
    lines += [
        f"environment parameter {name}: {_told(each)}" for name, each in (config.environment_parameters or {}).items()
    ]
    for name, settings in config.behaviors.items():
        lines += _describe_behavior(config, name, settings.trainer_type, hosts.learners.kind)
    if config.evaluation is not None:
        lines.append(f"evaluation every {config.evaluation.every} steps, {config.evaluation.episodes} episodes")
    lag = config.pipeline.max_policy_lag
    lines.append(
        f"policy lag: at most {lag} update{'' if lag == 1 else 's'}"
        + (", deterministic" if config.pipeline.deterministic else "")
    )
    return "\n".join(lines)


def _played(config: RunConfig) -> str:
    """What the agents act in, in words."""
    environment, unity = config.environment, config.env_settings
    if environment is not None:
        what = environment.id or environment.factory
        return f"{environment.kind} {what}, {environment.num_envs} instances per actor"
    if unity.env_path is None:
        return "the Unity Editor, on port 5004"
    last = unity.base_port + unity.num_envs * config.pipeline.hosts.actors.replicas - 1
    ports = f"ports {unity.base_port} to {last}" if last > unity.base_port else f"port {last}"
    if not unity.base_port:
        ports = "any free ports"
    return f"unity {unity.env_path}, {unity.num_envs} instances per actor, on {ports}"


def _told(parameter: EnvironmentParameter) -> str:
    """What an environment parameter is, in words."""
    if isinstance(parameter, Curriculum):
        return "lessons " + " → ".join(lesson.name for lesson in parameter.curriculum)
    if isinstance(parameter, float):
        return f"{parameter:g}"
    drawn = parameter.sampler_parameters.model_dump(exclude={"seed"})
    return f"{parameter.sampler_type}, " + ", ".join(f"{name} {value}" for name, value in drawn.items())


def _describe_behavior(config: RunConfig, name: str, trainer: str, kind: str) -> Sequence[str]:
    way = route(config, name)
    ghost = (GHOST,) if way.self_play else ()
    middle = [f"{stage} (main)" for stage in (*way.before_ghost, *ghost, *way.after_ghost)]
    settings = config.behavior_settings(name)
    return [
        f"behavior {name}: "
        + " → ".join(["actors", *middle, f"trainer {trainer} ({kind})", "publisher (main)", "actors"]),
        f"  max_steps {settings.max_steps}, time_horizon {settings.time_horizon}, "
        f"trajectory queue of {config.pipeline.queues.trajectories.maxlen}",
    ]
