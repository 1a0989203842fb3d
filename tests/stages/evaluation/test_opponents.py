"""Who plays against whom in an evaluation: teams, mates, and the kinds of opponents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fakes import EchoPolicy, policy_update

from headrace.config import ConfigError, RunConfig
from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.brains import BrainRequest
from headrace.stages.environments.protocol import AgentSteps, StepResult
from headrace.stages.errors import LoadError, StageError
from headrace.stages.evaluation import EvaluationStage
from headrace.stages.evaluation.opponents import (
    BrainOpponents,
    NewestOpponents,
    SnapshotOpponents,
    check_opponents,
    make_opponents,
)
from headrace.stages.policy.protocol import Decision
from headrace.stages.stage import StageContext


class Duels:
    """One agent of each behaviour id in each instance; games of one step, in which the highest action wins.

    An agent's action is what its policy's weights say; who wins gets 1, the others get -1.
    """

    def __init__(self, *behavior_ids: str, num_envs: int = 2) -> None:
        self.num_envs = num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            i: BehaviorSpec(i, (ObservationSpec("seen", (1,)),), ActionSpec(1)) for i in behavior_ids
        }
        self.played: list[dict[str, float]] = []
        """The actions of each game in the first instance."""
        self.resets = 0

    def reset(self, seed: int | None = None) -> StepResult:
        self.resets += 1
        return self._result(None)

    def step(self, actions: Any) -> StepResult:
        chosen = {i: actions[i].continuous[:, 0] for i in self.behavior_specs}
        self.played.append({i: float(values[0]) for i, values in chosen.items()})
        return self._result(chosen)

    def close(self) -> None:
        pass

    def _result(self, chosen: Any) -> StepResult:
        highest = None if chosen is None else np.max(list(chosen.values()), axis=0)
        steps = {}
        for number, behavior_id in enumerate(self.behavior_specs):
            deciding = np.arange(self.num_envs)
            ended = deciding if chosen is not None else deciding[:0]
            envs = np.concatenate([ended, deciding]).astype(np.int32)
            rewards = np.zeros(len(envs), np.float32)
            if chosen is not None:
                rewards[: len(ended)] = np.where(chosen[behavior_id] == highest, 1.0, -1.0)
            steps[behavior_id] = AgentSteps(
                agent_ids=envs.astype(np.int64) + 100 * number,
                env_ids=envs,
                episode_ids=np.zeros(len(envs), np.int64),
                observations=(np.zeros((len(envs), 1), np.float32),),
                rewards=rewards,
                ended=len(ended),
                terminated=np.ones(len(ended), np.bool_),
                truncated=np.zeros(len(ended), np.bool_),
            )
        return StepResult(steps)


class Weighty(EchoPolicy):
    """Acts by the number that its weights are."""

    def load(self, update: PolicyUpdate) -> None:
        self.number = float(update.weights[0])

    def act(self, observations, masks, random, deterministic=False, recall=None):
        assert deterministic
        count = len(observations[0])
        continuous = np.full((count, 1), self.number, np.float32)
        return Decision(ActionBatch(continuous, np.zeros((count, 0), np.int32)), {})


class Shelf:
    """A store of snapshots."""

    def __init__(self) -> None:
        self.kept: dict[str, PolicyUpdate] = {}

    def read(self, behavior: str) -> PolicyUpdate | None:
        return self.kept.get(behavior)

    def keep(self, policy: PolicyUpdate, spec: BehaviorSpec) -> None:
        self.kept[spec.name] = policy


def evaluated(group: Duels, opponents: Any, *policies: tuple[str, int], episodes: int = 8) -> list[Any]:
    """Evaluate policies (behaviour, weight), one after the other; those of weight 0 only become known."""
    reports: list[Any] = []
    stage = EvaluationStage(lambda: group, Weighty, opponents, 1, episodes, reports.append)
    stage.start(StageContext("evaluation", log=logging.getLogger("headrace.stages.evaluation")))

    async def run() -> None:
        for number, (behavior, weight) in enumerate(policies):
            async for _ in stage.process(policy_update(behavior, weight, 10 * number)):
                pass

    asyncio.run(run())
    return reports


BALL = ("Ball?team=0", "Ball?team=1")


def test_with_opponents_self_a_policy_plays_all_teams():
    group = Duels(*BALL)
    (report,) = evaluated(group, NewestOpponents(), ("Ball", 0), ("Ball", 7))
    assert group.played == [{"Ball?team=0": 7.0, "Ball?team=1": 7.0}] * 2
    assert (report.score.episodes, report.spec.name) == (8, "Ball")


def test_an_evaluation_against_itself_is_warned_of(caplog):
    evaluated(Duels(*BALL), NewestOpponents(), ("Ball", 0), ("Ball", 7), ("Ball", 8))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "Ball plays for all 2 teams" in warning
    assert "evaluation.opponents" in warning


def test_snapshots_are_the_policies_of_the_first_evaluation_all_along():
    group, shelf = Duels(*BALL, num_envs=4), Shelf()
    reports = evaluated(group, SnapshotOpponents(shelf), ("Ball", 0), ("Ball", 3), ("Ball", 5), ("Ball", 2))
    assert [report.score.mean for report in reports] == [
        1.0,
        1.0,
        -1.0,
    ]  # who plays against itself draws: all are highest
    assert shelf.kept["Ball"].weights[0] == 3
    assert [report.score.episodes for report in reports] == [8, 8, 8]
    second = group.played[2:4]  # one game in each of four instances, for either side
    assert second == [{"Ball?team=0": 5.0, "Ball?team=1": 3.0}, {"Ball?team=0": 3.0, "Ball?team=1": 5.0}]


def test_a_resumed_run_plays_against_the_snapshots_that_were_kept():
    shelf = Shelf()
    shelf.kept["Ball"] = policy_update("Ball", 9)
    (report,) = evaluated(Duels(*BALL), SnapshotOpponents(shelf), ("Ball", 0), ("Ball", 5))
    assert report.score.mean == -1.0


def test_mates_of_another_behaviour_play_their_newest_policies_whatever_the_opponents():
    group = Duels("Keeper?team=0", "Striker?team=0", "Keeper?team=1", "Striker?team=1")
    evaluated(group, BrainOpponents(BrainRequest("random")), ("Striker", 0), ("Striker", 4), ("Keeper", 6), episodes=2)
    as_first = group.played[-2]  # of Keeper, in team 0
    assert (as_first["Keeper?team=0"], as_first["Striker?team=0"]) == (6.0, 4.0)
    assert all(-1 <= as_first[other] <= 1 for other in ("Keeper?team=1", "Striker?team=1"))
    as_second = group.played[-1]
    assert (as_second["Keeper?team=1"], as_second["Striker?team=1"]) == (6.0, 4.0)


def test_each_behaviour_has_one_evaluation_in_which_the_others_play_their_newest_policies():
    group = Duels("Hider?team=0", "Seeker?team=1")
    found = evaluated(group, NewestOpponents(), ("Hider", 0), ("Seeker", 5), ("Hider", 7), ("Seeker", 6))
    assert [(report.spec.name, report.score.mean) for report in found] == [
        ("Seeker", 1.0),
        ("Hider", 1.0),
        ("Seeker", -1.0),
    ]


def test_behaviours_without_a_policy_act_at_random_with_a_warning(caplog):
    group = Duels("Hider?team=0", "Seeker?team=1")
    evaluated(group, NewestOpponents(), ("Hider", 0), ("Hider", 7), ("Hider", 8))
    assert [record.getMessage() for record in caplog.records] == [
        "evaluation: Seeker has no policy yet, so its agents act at random."
    ]


# Scripted players. -----------------------------------------------------------------------------------------------------

SCRIPTS = """
import numpy as np
from headrace.queues.messages import ActionBatch

class Constant:
    def __init__(self, spec, seed, value=0.5):
        assert seed >= 0
        self.spec, self.value = spec, value

    def __call__(self, observations):
        count = len(observations[0])
        return ActionBatch(np.full((count, 1), self.value, np.float32), np.zeros((count, 0), np.int32))

class Wrong:
    def __call__(self, observations):
        return ActionBatch(np.zeros((1, 3), np.float32), np.zeros((1, 0), np.int32))

class Broken:
    def __call__(self, observations):
        raise ValueError("no idea")

class NoPlayer:
    pass
"""


def scripted(tmp_path, **section: Any) -> RunConfig:
    (tmp_path / "scripts_of_evaluation.py").write_text(SCRIPTS)
    path = tmp_path / "run.yaml"
    return RunConfig.from_plain(
        {
            "behaviors": {"Ball": {}},
            "environment": {"kind": "builtin", "id": "Volley"},
            "evaluation": {"every": 1, **section},
        },
        path,
    )


def opponents_of(tmp_path, name: str, **arguments: Any) -> Any:
    config = scripted(tmp_path, opponents=f"scripts_of_evaluation:{name}", opponents_with=arguments)
    return make_opponents(config, Shelf())


def test_a_scripted_player_plays_all_opponents(tmp_path):
    group = Duels(*BALL)
    (report,) = evaluated(group, opponents_of(tmp_path, "Constant", value=8), ("Ball", 0), ("Ball", 7))
    assert group.played[0] == {"Ball?team=0": 7.0, "Ball?team=1": 8.0}
    assert report.score.mean == -1.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Wrong",
            "returned an ActionBatch with continuous of shape [1, 3] and discrete of shape [1, 0] for 2 agents of "
            "Ball?team=1; expected",
        ),
        ("Broken", "raised ValueError: no idea (at "),
    ],
)
def test_a_script_that_fails_is_named(tmp_path, name, said):
    with pytest.raises(StageError) as raised:
        evaluated(Duels(*BALL), opponents_of(tmp_path, name), ("Ball", 0), ("Ball", 7))
    assert f"evaluation.opponents: scripts_of_evaluation:{name} {said}" in str(raised.value)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"opponents": "scripts_of_evaluation:NoPlayer"}, "is not a player: it has no method __call__"),
        ({"opponents": "scripts_of_evaluation:Missing"}, "has no attribute 'Missing'"),
        ({"opponents": "scripts_of_evaluation:Constant", "opponents_with": {"size": 1}}, "does not accept {'size': 1}"),
    ],
)
def test_a_class_that_is_not_a_player_is_found_before_the_start(tmp_path, section, said):
    (mistake,) = check_opponents(scripted(tmp_path, **section))
    assert isinstance(mistake, LoadError)
    assert said in str(mistake)


def test_unknown_opponents_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="'snapshots' is not a brain.*did you mean 'snapshot'"):
        scripted(tmp_path, opponents="snapshots")
    with pytest.raises(ConfigError, match="opponents_with.*'random' accepts no arguments"):
        scripted(tmp_path, opponents="random", opponents_with={"seed": 3})
