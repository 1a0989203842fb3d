"""The table of parts of a run: features beyond collecting steps and learning from them.

A part is one folder, `pipeline/parts/<name>/`, with one module per side: `main.py` for main's event loop, `host.py` for
its own host, `actor.py` and `learner.py` for its additions to these hosts, `page.py` for the live page. No run
without the part needs its folder, so deleting the folder and its entry here leaves other runs intact; only its messages
(`control/messages.py`), YAML keys and stages then remain, without effect.

Strings `module:Class` name the code, and only the process that runs it imports it: a learner needs no environment
library, and an actor no torch.
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
    """A role of hosts: the code that it runs, and how it is started, shown and supervised."""

    implementation: str
    """`module:Class`, a `pipeline.roles.runtime.Host`."""
    placed_as: str = "actors"
    """Key of `pipeline.hosts` that says where such hosts run."""
    stages: tuple[str, ...] = ()
    """Stages that the live page shows in the host; those of actors depend on the configuration."""
    limits: Literal["actors", "learners"] = "actors"
    """Section of `pipeline.supervision` with the limits of its silence."""
    patience: float = 1.0
    """Factor by which these limits are multiplied."""


@dataclass(frozen=True, slots=True)
class RunPartKind:
    """One part of a run."""

    wanted: Callable[[RunConfig], bool]
    """Called with the configuration; returns True if the run has the part."""
    main: str = ""
    """`module:Class`, a `pipeline.main.run_part.RunPart`."""
    actor: str = ""
    """`module:Class`, a `pipeline.roles.actor.ActorPart`."""
    learner: str = ""
    """`module:Class` that `pipeline/roles/{training,learner}.py` create for a trainer with the part."""
    page: str = ""
    """`module:name` of the function that returns the game on the live page; the first part that has one provides it."""
    roles: Mapping[str, HostRole] = field(default_factory=dict)
    """The part's own hosts, by role."""


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
        # Otherwise the learner, which waits for its shards, would be blamed for their silence.
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
"""Parts by name; a run notifies its parts in this order."""

_ROLES = {
    "actor": HostRole("headrace.pipeline.roles.actor:ActorHost"),
    "replay": HostRole("headrace.pipeline.roles.replay:ReplayHost"),
    "learner": HostRole("headrace.pipeline.roles.learner:LearnerHost", "learners", (TRAINER,), "learners"),
}


def host_role(name: str) -> HostRole:
    """Return the table entry of a role, including the roles of parts."""
    return _ROLES.get(name) or next(kind.roles[name] for kind in RUN_PARTS.values() if name in kind.roles)


def wanted_sides(config: RunConfig, side: Literal["main", "actor", "page"]) -> dict[str, Any]:
    """Return the classes of one side of all parts of a run, by part name."""
    found = {name: getattr(kind, side) for name, kind in RUN_PARTS.items() if kind.wanted(config)}
    return {name: load_attribute(path, None, "part of a run") for name, path in found.items() if path}


def learner_side(name: str) -> Any:
    """Return a part's class for learners."""
    return load_attribute(RUN_PARTS[name].learner, None, "part of a run")
