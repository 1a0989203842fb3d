"""The runs and commands that `kill.py` kills, one entry each: the program, its victims, and the expected outcome."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from run_configs import (
    EXPERT,
    TEAM_ENV,
    TOLD_ENV,
    Plain,
    cartpole,
    changed,
    cooperating,
    remembering,
    sac,
    taught,
    team_play,
    troubled,
    unrolling,
    volley,
)

FOREVER = 10**9
RESTARTS = {"env_settings__max_lifetime_restarts": -1, "env_settings__restarts_rate_limit_n": -1}
GAME_ENV = TEAM_ENV.with_name("game_env.py")
LEAGUE_ENV = (TEAM_ENV.with_name("duel_env.py"),)
SWEEPER, NODE = "sweeper", "node"
"""Victims other than hosts: the sweeper, and Ray's daemon on the machine."""
BOTH = {
    "environment__behaviors": {
        "red_*": {"behavior": "Red", "team": 0, "group": True},
        "blue_*": {"behavior": "Blue", "team": 1, "group": True},
    }
}


@dataclass(frozen=True)
class Scenario:
    """A run or a command to kill."""

    name: str
    plain: Plain
    victims: Mapping[str, str]
    """By label in the table: the names of hosts that the run replaces. Main is always a victim too."""
    fatal: Mapping[str, str]
    """By label in the table: the names of hosts whose loss ends the run with an error that names the host."""
    beside: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()
    on_ray: bool = False
    viewed: bool = False
    """True if a viewer opens the run's page."""
    command: str = ""
    """`serve` or `validate` for a command that is not a run; empty for a run."""

    @property
    def behaviors(self) -> list[str]:
        """Names of the run's behaviours; of a league, each learner's."""
        return _learners(self.plain)


def _learners(plain: Plain) -> list[str]:
    return [
        f"{name}.{learner}" if learner else name
        for name, settings in sorted(plain["behaviors"].items())  # the file lists behaviours in alphabetical order
        for learner in sorted(settings.get("league", {}).get("learners", [""]))
    ]


def _league(behaviors: Sequence[str], factory: str, **changes: Any) -> Plain:
    """Return a league on duels that count their games."""
    plain = cartpole()
    plain["environment"] = {
        "kind": "gymnasium",
        "factory": f"duel_env:{factory}",
        "behavior": min(behaviors),
        "num_envs": 4,
    }
    matches = {"main": [{"match": "self"}, {"match": "pfsp"}], "rival": [{"match": "newest"}]}
    settings = plain["behaviors"].pop("CartPole")
    settings["hyperparameters"] |= {"buffer_size": 128, "batch_size": 32}
    learners = {name: {"matches": each, "freeze": {"at_most": 1000}} for name, each in matches.items()}
    league = {"rating": 0.2, "learners": learners}
    plain["behaviors"] = {behavior: {**settings, "league": league} for behavior in behaviors}
    return changed(plain, changes)


def _run(name: str, plain: Plain, every: int, fatal: Mapping[str, str] | None = None, **others: Any) -> Scenario:
    """Return an endless run with a checkpoint every `every` steps; victims are actors, learners and others if given."""
    hosts = plain.get("pipeline", {}).get("hosts", {})
    in_ray = {kind for kind in ("actors", "learners") if hosts.get(kind, {}).get("kind") == "ray"}
    first = _learners(plain)[0]
    victims = {"actor": "actor-0", "learner": f"learner-{first}", **others.pop("also", {})}
    if in_ray:
        victims = {f"{word} on Ray": host for word, host in victims.items()}
    else:
        victims["sweeper"] = SWEEPER
    endless = {"max_steps": FOREVER, "checkpoint_interval": every, "summary_freq": 5 * every}
    each = {f"behaviors__{behavior}__{key}": value for behavior in plain["behaviors"] for key, value in endless.items()}
    return Scenario(
        name, changed(plain, {**RESTARTS, **each}), victims, fatal or {}, on_ray=bool(in_ray or "ray" in name), **others
    )


def _commands() -> list[Scenario]:
    games = changed(troubled(), {"environment__factory": "game_env:GameEnv", "environment__num_envs": 2})
    games["environment"]["options"] = {"folder": ".", "session": True}
    return [
        Scenario("serve", cartpole(), {}, {}, command="serve"),
        Scenario("validate", games, {}, {}, (GAME_ENV,), ("--validate",), command="validate"),
    ]


def scenarios() -> list[Scenario]:
    """Return all scenarios."""
    lesson = {"behavior": "Guess", "min_lesson_length": 120, "threshold": -99}
    lessons = [{"name": f"L{i}", "value": 1 + i % 3, "completion_criteria": lesson} for i in range(200)]
    course = {"environment_parameters__worth__curriculum": [*lessons, {"name": "Last", "value": 2}]}
    memory = changed(sac(), {"behaviors__Pendulum__hyperparameters__buffer_size": 5000})
    spread = {"pipeline__hosts__replay": {"kind": "process", "replicas": 2}}
    gail = {"strength": 0.1, "demo_path": EXPERT, "network_settings": {"hidden_units": 8}}
    two = changed(team_play(), BOTH)
    two["behaviors"] = dict.fromkeys(("Red", "Blue"), two["behaviors"]["Team"])
    on_ray = {"pipeline__hosts": {"actors": {"kind": "ray"}, "learners": {"kind": "ray"}}}
    shared = changed(two, {"pipeline__hosts__learners__processes": 1})
    follower, shard, inference = "learner-CartPole-replica-1", "replay-Pendulum-1", "inference"
    return [
        _run("self-play", volley(record__edges=["trainer"]), 1500),
        _run("replay memory", memory, 150),
        _run("lessons", changed(taught(), course), 1000, beside=(TOLD_ENV,)),
        _run("impala with replay", unrolling(), 400),
        _run("poca", cooperating(), 400, beside=(TEAM_ENV,)),
        _run("lstm, curiosity, gail", changed(remembering(), {"behaviors__CartPole__reward_signals__gail": gail}), 400),
        _run("two behaviours", two, 400, beside=(TEAM_ENV,)),
        _run("shared learner process", shared, 400, beside=(TEAM_ENV,)),
        _run("replicas", cartpole(pipeline__hosts__learners__replicas=2), 1000, also={"follower": follower}),
        _run("shards", changed(memory, spread), 150, {"shard": shard}),
        _run(
            "central inference",
            cartpole(pipeline__inference="central", pipeline__hosts__actors__replicas=2),
            1000,
            {"inference": inference},
        ),
        _run("monitor with a viewer", cartpole(), 1000, arguments=("--monitor=0",), viewed=True),
        _run("league", _league(["Ball"], "Counted"), 1000, beside=LEAGUE_ENV),
        _run("league by side", _league(["Side0", "Side1"], "CountedSides"), 1000, beside=LEAGUE_ENV),
        _run("league on ray", _league(["Ball"], "Counted", **on_ray), 1000, {"node of Ray": NODE}, beside=LEAGUE_ENV),
        _run("ray", cartpole(**on_ray), 1000, {"node of Ray": NODE}),
        _run(
            "ray with shards",
            changed(memory, {**on_ray, "pipeline__hosts__replay": {"kind": "ray", "replicas": 2}}),
            150,
            {"shard on Ray": shard, "node of Ray": NODE},
        ),
        *_commands(),
    ]
