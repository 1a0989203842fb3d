"""The table of parts of a run: features that a run may have beside collecting steps and learning from them.

A part is one folder, `pipeline/parts/<name>/`, with one module a side: `main.py` for main's event loop, `host.py` for a
host of its own, `actor.py` and `learner.py` for what it adds to these hosts, `page.py` for the live page. What other
runs need is outside of its folder, so they go on when it is deleted with its entry here. Left behind are then its
messages (`control/messages.py`), its keys of the YAML and its stages, which do nothing.

Code is named by strings `module:Class`, and imported by the process that runs it: a learner needs no environment
library, an actor no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.config import RunConfig
from headrace.config.section_checks import persons_in
from headrace.config.tables import Table
from headrace.pipeline.common.graph import INFERENCE, TRAINER, acts, decides_centrally, league_seats
from headrace.stages.loading import load_attribute


@dataclass(frozen=True, slots=True)
class HostRole:
    """What one kind of work that hosts do needs to be known of."""

    implementation: str
    """`module:Class`, a `pipeline.roles.runtime.Host`."""
    placed_as: str = "actors"
    """The key of `pipeline.hosts` that says where such hosts run."""
    stages: tuple[str, ...] = ()
    """The stages that the live page shows in it; those of actors depend on the configuration."""
    limits: Literal["actors", "learners"] = "actors"
    """The section of `pipeline.supervision` that says how long it may be silent."""
    patience: float = 1.0
    """Share of these limits that holds for it."""


@dataclass(frozen=True, slots=True)
class RunPartKind:
    """One part of a run."""

    wanted: Callable[[RunConfig], bool]
    """Whether a run has it."""
    main: str = ""
    """`module:Class`, a `pipeline.main.run_part.RunPart`."""
    actor: str = ""
    """`module:Class`, a `pipeline.roles.actor.ActorPart`."""
    learner: str = ""
    """`module:Class`: what `pipeline/roles/{training,learner}.py` make for a trainer that has the part."""
    page: str = ""
    """`module:name` of what returns the game that the live page shows; the first one counts."""
    roles: Mapping[str, HostRole] = field(default_factory=dict)
    """The hosts of its own, by role."""


_PARTS = "headrace.pipeline.parts"

RUN_PARTS: Table[RunPartKind] = Table(
    central_inference=RunPartKind(
        decides_centrally,
        main=f"{_PARTS}.central_inference.main:CentralInference",
        actor=f"{_PARTS}.central_inference.actor:CentralActor",
        roles={INFERENCE: HostRole(f"{_PARTS}.central_inference.host:InferenceHost", "inference", (INFERENCE,))},
    ),
    curricula=RunPartKind(
        lambda config: bool(config.environment_parameters), main=f"{_PARTS}.curricula.main:CurriculaPart"
    ),
    evaluation=RunPartKind(
        lambda config: config.evaluation is not None and not config.checkpoint_settings.inference,
        main=f"{_PARTS}.evaluation.main:Evaluation",
        roles={"evaluation": HostRole(f"{_PARTS}.evaluation.host:EvaluationHost", "evaluation", ("evaluation",))},
    ),
    followers=RunPartKind(
        lambda config: config.pipeline.hosts.learners.replicas > 1,
        main=f"{_PARTS}.followers.main:FollowersPart",
        learner=f"{_PARTS}.followers.learner:Followers",
        roles={"follower": HostRole(f"{_PARTS}.followers.host:FollowerHost", "learners", ("replica",))},
    ),
    league=RunPartKind(
        lambda config: acts(config) and bool(league_seats(config)),
        main=f"{_PARTS}.league.main:LeaguePart",
        actor=f"{_PARTS}.league.actor:LeagueActor",
    ),
    own_game=RunPartKind(
        lambda config: bool(persons_in(config)),
        main=f"{_PARTS}.own_game.main:OwnGameLink",
        actor=f"{_PARTS}.own_game.actor:HostedGame",
        page=f"{_PARTS}.own_game.page:own_game_of",
    ),
    exhibition=RunPartKind(
        lambda config: config.monitor is not None,
        page=f"{_PARTS}.exhibition.page:exhibition_of",
        roles={"exhibition": HostRole(f"{_PARTS}.exhibition.host:ExhibitionHost")},
    ),
    replay_shards=RunPartKind(
        lambda config: config.pipeline.hosts.replay.kind is not None,
        main=f"{_PARTS}.replay_shards.main:ReplayShards",
        learner=f"{_PARTS}.replay_shards.learner:ShardEdges",
        # The learner, which waits for its shards, would be blamed for their silence otherwise.
        roles={
            "replay_shard": HostRole(
                f"{_PARTS}.replay_shards.host:ReplayShardHost", "replay", ("replay_buffer",), "learners", patience=0.8
            )
        },
    ),
    scores=RunPartKind(
        lambda config: config.checkpoint_settings.inference,
        main=f"{_PARTS}.scores.main:ScoreBoard",
        actor=f"{_PARTS}.scores.actor:ActorScores",
    ),
)
"""By name; whatever happens in a run is told to its parts in this order."""

_ROLES = {
    "actor": HostRole("headrace.pipeline.roles.actor:ActorHost"),
    "replay": HostRole("headrace.pipeline.roles.replay:ReplayHost"),
    "learner": HostRole("headrace.pipeline.roles.learner:LearnerHost", "learners", (TRAINER,), "learners"),
}


def host_role(name: str) -> HostRole:
    """Return what is to be known of a role, which may be a part's."""
    return _ROLES.get(name) or next(kind.roles[name] for kind in RUN_PARTS.values() if name in kind.roles)


def wanted_sides(config: RunConfig, side: Literal["main", "actor", "page"]) -> dict[str, Any]:
    """Return the classes of one side of all parts that a run has, by the part's name."""
    found = {name: getattr(kind, side) for name, kind in RUN_PARTS.items() if kind.wanted(config)}
    return {name: load_attribute(path, None, "part of a run") for name, path in found.items() if path}


def learner_side(name: str) -> Any:
    """Return the class that a part has for learners."""
    return load_attribute(RUN_PARTS[name].learner, None, "part of a run")
