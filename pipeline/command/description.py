"""`--validate`: a readable description of the pipeline that a configuration builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import indent

import yaml

from headrace.config import Curriculum, EnvironmentParameter, RunConfig
from headrace.config.environment_kinds import UNITY, load_entry
from headrace.config.league import expanded
from headrace.pipeline.common.graph import (
    GHOST,
    actor_learners,
    decides_centrally,
    offline_demonstrations,
    placements_after,
    route,
    shard_names,
)

ACTOR_STAGES = ("environment", "agent_processor")


def describe(config: RunConfig) -> str:
    """Return the lines that `--validate` prints."""
    hosts = config.pipeline.hosts
    lines = []
    if config.replay is not None:
        lines.append(f"replay of {', '.join(config.replay.streams)} (speed {config.replay.speed})")
    elif offline_demonstrations(config):
        lines.append(
            f"repeated passes over the demonstrations for {', '.join(offline_demonstrations(config))}; no agent acts"
        )
    else:
        custom = [placement.name for placement in placements_after(config, "agent_processor", in_main=False)]
        actors = len(actor_learners(config)) or hosts.actors.replicas
        lines.append(
            f"{actors} actor host{'s' if actors > 1 else ''} ({hosts.actors.kind}): "
            + " → ".join([*ACTOR_STAGES, *custom])
        )
        lines.append(f"  environment: {load_entry(config.environment_kind.description)(config)}{_repeat(config)}")
        if decides_centrally(config):
            lines.append(
                f"1 inference host ({hosts.inference.kind}): chooses actions for all learning agents in batches"
            )
    lines += [
        f"environment parameter {name}: {_parameter(parameter)}"
        for name, parameter in (config.environment_parameters or {}).items()
    ]
    for name, settings in config.behaviors.items():
        together = f", {hosts.learners.replicas} replicas" if hosts.learners.replicas > 1 else ""
        lines += _behavior(config, name, settings.trainer_type, hosts.learners.kind + together)
    lines += _leagues(config)
    if open_keys := _open_keys(config):
        lines.append(
            f"chosen when the run starts (auto), from the number of cores and the step time: {', '.join(open_keys)}"
        )
    if config.torch_settings.precision == "bf16":
        lines.append("learners compute hidden-layer matrix products in bf16; policies and files stay float32")
    if config.evaluation is not None:
        played = config.evaluation
        lines.append(f"evaluation every {played.every} steps, {played.episodes} episodes against {played.opponents}")
    lines.append(
        f"policy lag: {_lag(config.pipeline.max_policy_lag)}"
        + (", deterministic" if config.pipeline.deterministic else "")
    )
    return "\n".join(lines)


def _open_keys(config: RunConfig) -> list[str]:
    """Return the keys whose values the run chooses to suit the machine when it starts."""
    hosts, section = config.pipeline.hosts, config.environment
    choices = {
        "kind of actors": hosts.actors.is_auto("kind"),
        "kind of learners": hosts.learners.is_auto("kind"),
        "number of actors": hosts.actors.is_auto("replicas")
        and config.environment_kind.one_after_another
        and not actor_learners(config),
        "num_envs": config.env_settings.is_auto("num_envs") or (section is not None and section.is_auto("num_envs")),
    }
    return [name for name, is_open in choices.items() if is_open]


def _leagues(config: RunConfig) -> Iterator[str]:
    """Yield each league as YAML, with presets and defaults filled in, and how many actors play for each learner."""
    of_actors = actor_learners(config)
    for of in dict.fromkeys(
        settings.league.of for settings in config.behaviors.values() if settings.league is not None
    ):
        learners = config.league_learners(of)
        league = config.behavior_settings(of).league
        assert league is not None, "it has learners"
        steps = max(config.behavior_settings(name).max_steps for name in learners)
        played = ", ".join(f"{of_actors.count(name)} for {name}" for name in learners) if of_actors else "no learners"
        yield f"league of {of}, as expanded from the file (actors: {played}):"
        plain = expanded(league.for_steps(steps))
        for name, learner in zip(learners, plain["league"]["learners"].values(), strict=True):
            keys = config.behaviors[name].model_dump(mode="json", exclude={"league"}, exclude_unset=True)
            learner.update(keys)  # those of the preset, the behaviour and the learner
        yield indent(yaml.safe_dump(plain, sort_keys=False).rstrip(), "  ")


def describe_environment(config: RunConfig) -> str:
    """Describe in one line the environments of a run with an `environment` section."""
    environment = config.environment
    assert environment is not None, "there is a section"
    return f"{environment.kind} {environment.named}".rstrip() + f", {_instances(environment.num_envs)}"


def describe_programs(config: RunConfig) -> str:
    """Describe in one line the Unity or Godot programs that a run plays."""
    settings, kind = config.env_settings, config.environment_kind
    if settings.env_path is None:
        return f"{kind.editor}, on port {kind.editor_port or settings.base_port}"
    section = config.environment
    name, count = (UNITY, settings.num_envs) if section is None else (section.kind, section.num_envs)
    evaluated = config.evaluation is not None
    last = settings.base_port + count * (config.pipeline.hosts.actors.replicas + evaluated) - 1
    ports = f"ports {settings.base_port} to {last}" if last > settings.base_port else f"port {last}"
    if not settings.base_port:
        ports = "any free ports"
    beside = f" and {count} for evaluation" if evaluated else ""
    return f"{name} {settings.env_path}, {_instances(count)}{beside}, on {ports}"


def _repeat(config: RunConfig) -> str:
    repeat = None if config.environment is None else config.environment.action_repeat
    if repeat is None:
        return ""
    steps = f"{repeat.steps}" if repeat.max is None else f"1 to {repeat.max}, as the policy chooses,"
    return f", each action held for {steps} environment step{'' if repeat.steps == 1 else 's'}"


def _lag(lag: int | str) -> str:
    return (
        f"at most {lag} update{'' if lag == 1 else 's'}"
        if lag != "auto"
        else "0 or 1 update, chosen by timing the first updates"
    )


def _parameter(parameter: EnvironmentParameter) -> str:
    if isinstance(parameter, Curriculum):
        return "lessons " + " → ".join(lesson.name for lesson in parameter.curriculum)
    if isinstance(parameter, float):
        return f"{parameter:g}"
    drawn = parameter.sampler_parameters.model_dump(exclude={"seed"})
    return f"{parameter.sampler_type}, " + ", ".join(f"{name} {value}" for name, value in drawn.items())


def _decided(config: RunConfig, name: str, stages: Sequence[str]) -> Sequence[str]:
    """Describe a behaviour that does not learn."""
    settings = config.behavior_settings(name)
    way = " → ".join(["actors", "counted (main)", *(f"{stage} (main)" for stage in stages)])
    brains = ", ".join(f"{brain.name} ({100 * brain.weight:g} %)" for brain in settings.brain)
    return [f"behavior {name}: {way}", f"  controlled by {brains}, {'' if settings.broadcast else 'not '}broadcast"]


def _behavior(config: RunConfig, name: str, trainer: str, kind: str) -> Sequence[str]:
    path = route(config, name)
    if not config.behavior_settings(name).learns:
        return _decided(config, name, path.before_ghost)
    ghost = (GHOST,) if path.self_play else ()
    middle = [f"{stage} (main)" for stage in (*path.before_ghost, *ghost, *path.after_ghost)]
    settings, shards = config.behavior_settings(name), shard_names(config, name)
    in_shards = f"{len(shards)} shard{'' if len(shards) == 1 else 's'}"
    return [
        f"behavior {name}: "
        + " → ".join(["actors", *middle, f"trainer {trainer} ({kind})", "publisher (main)", "actors"]),
        *([f"  replay buffer in {in_shards} ({config.pipeline.hosts.replay.kind})"] if shards else []),
        f"  max_steps {settings.max_steps}, time_horizon {settings.time_horizon}, "
        f"trajectory queue of {config.pipeline.queues.trajectories.maxlen}",
    ]


def _instances(count: int | str) -> str:
    return f"{count} instance{'s' * (count != 1)} per actor"
