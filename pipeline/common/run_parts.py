"""The table of run parts: features beyond collecting steps and learning from them.

A part is one module, `pipeline/parts/<name>.py`, with a class for each side: main's event loop, its own host, its
additions to actor and learner hosts, the live page. A part is a folder with a module per side if the sides are long, or
if only one of them imports torch. A run without the part needs none of this, so deleting the module and its entry here
leaves other runs intact. Only the part's messages (`pipeline/control.py`), YAML keys and stages remain, without effect.

The table names code as `module:Class` strings, and only the process that runs the code imports it: a learner needs no
environment library, and an actor no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.config import RunConfig
from headrace.config.tables import Table
from headrace.pipeline.common.graph import INFERENCE, TRAINER, actor_learners, acts, decides_centrally
from headrace.stages.loading import load_attribute


@dataclass(frozen=True, slots=True)
class HostRole:
    """A host role: the code that a host runs, and how the host is started, shown and supervised."""

    implementation: str
    """`module:Class` of the host class, a `pipeline.roles.runtime.Host`."""
    placed_as: str = "actors"
    """Key in `pipeline.hosts` that configures where hosts with this role run."""
    stages: tuple[str, ...] = ()
    """Names of the stages that the live page shows in the host; an actor's stages depend on the configuration."""
    limits: Literal["actors", "learners"] = "actors"
    """Section of `pipeline.supervision` that limits how long the host may be silent."""
    patience: float = 1.0
    """Factor by which the silence limits are multiplied."""


@dataclass(frozen=True, slots=True)
class RunPartKind:
    """A table entry: the code of one part, and the condition for using it."""

    wanted: Callable[[RunConfig], bool]
    """Function that returns True if a run with this configuration has the part."""
    main: str = ""
    """`module:Class` of a `pipeline.main.run_part.RunPart`; empty if main needs no code."""
    actor: str = ""
    """`module:Class` of a `pipeline.roles.actor.ActorPart`; empty if actors need no code."""
    learner: str = ""
    """`module:Class` of the object that `pipeline/roles/learner.py` creates for a trainer with the part;
    empty if there is none.
    """
    page: str = ""
    """`module:name` of a function that returns the game for the live page; empty if the part has no game."""
    roles: Mapping[str, HostRole] = field(default_factory=dict)
    """Roles of the part's own hosts, keyed by role name."""


_PARTS = "headrace.pipeline.parts"

RUN_PARTS: Table[RunPartKind] = Table(
    central_inference=RunPartKind(
        decides_centrally,
        main=f"{_PARTS}.central_inference:CentralInference",
        actor=f"{_PARTS}.central_inference:CentralActor",
        roles={INFERENCE: HostRole(f"{_PARTS}.central_inference:InferenceHost", "inference", (INFERENCE,))},
    ),
    curricula=RunPartKind(lambda config: bool(config.environment_parameters), main=f"{_PARTS}.curricula:CurriculaPart"),
    evaluation=RunPartKind(
        lambda config: config.evaluation is not None and not config.checkpoint_settings.inference,
        main=f"{_PARTS}.evaluation:Evaluation",
        roles={"evaluation": HostRole(f"{_PARTS}.evaluation:EvaluationHost", "evaluation", ("evaluation",))},
    ),
    followers=RunPartKind(
        lambda config: config.pipeline.hosts.learners.replicas > 1,
        main=f"{_PARTS}.followers:FollowersPart",
        learner=f"{_PARTS}.followers:Followers",
        roles={"follower": HostRole(f"{_PARTS}.followers:FollowerHost", "learners", ("replica",))},
    ),
    league=RunPartKind(
        lambda config: acts(config) and bool(actor_learners(config)),
        main=f"{_PARTS}.league:LeaguePart",
        actor=f"{_PARTS}.league:LeagueActor",
    ),
    exhibition=RunPartKind(
        lambda config: config.monitor is not None,
        main=f"{_PARTS}.exhibition.page:RunGameMessages",
        actor=f"{_PARTS}.exhibition.hosted_game:PlayInRun",
        page=f"{_PARTS}.exhibition.page:game_of",
        roles={"exhibition": HostRole(f"{_PARTS}.exhibition.host:ExhibitionHost")},
    ),
    replay_shards=RunPartKind(
        lambda config: config.pipeline.hosts.replay.kind is not None,
        main=f"{_PARTS}.replay_shards.queues:ReplayShards",
        learner=f"{_PARTS}.replay_shards.queues:ShardEdges",
        # A shard's limit must expire before that of its learner: the learner waits for its shards and would be blamed.
        roles={
            "replay_shard": HostRole(
                f"{_PARTS}.replay_shards.host:ReplayShardHost", "replay", ("replay_buffer",), "learners", patience=0.8
            )
        },
    ),
    scores=RunPartKind(
        lambda config: config.checkpoint_settings.inference,
        main=f"{_PARTS}.scores:ScoreBoard",
        actor=f"{_PARTS}.scores:ActorScores",
    ),
)
"""Parts, keyed by name. A run notifies its parts in this order."""

_ROLES = {
    "actor": HostRole("headrace.pipeline.roles.actor:ActorHost"),
    "replay": HostRole("headrace.pipeline.roles.replay:ReplayHost"),
    "probe": HostRole("headrace.pipeline.roles.probe:ProbeHost"),
    "learner": HostRole("headrace.pipeline.roles.learner:LearnerHost", "learners", (TRAINER,), "learners"),
}


def host_role(name: str) -> HostRole:
    """Return the entry for a role name: one of the basic roles, or a role that a part defines."""
    return _ROLES.get(name) or next(kind.roles[name] for kind in RUN_PARTS.values() if name in kind.roles)


def wanted_sides(config: RunConfig, side: Literal["main", "actor", "page"]) -> dict[str, Any]:
    """Return the class or function that each of the run's parts has for one side, keyed by part name."""
    paths = {name: getattr(kind, side) for name, kind in RUN_PARTS.items() if kind.wanted(config)}
    return {name: load_attribute(path, None, "part of a run") for name, path in paths.items() if path}


def learner_side(name: str) -> Any:
    """Return a part's class for learners."""
    return load_attribute(RUN_PARTS[name].learner, None, "part of a run")
