"""The trial of a run, by the run's own code: what it finds has the run's words, and who passes makes a first update."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_configs import changed

from headrace.config import RunConfig
from headrace.pipeline import trial_run
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import run
from headrace.pipeline.trial_run import try_run

ENVIRONMENTS = '''
import gymnasium, numpy as np, pettingzoo
from gymnasium import spaces as S


class Good(gymnasium.Env):
    """Ten steps of noise."""

    observation_space, action_space = S.Box(-1, 1, (3,), np.float32), S.Discrete(2)
    made = 0

    def __init__(self):
        type(self).made += 1
        self.number = type(self).made
        self.t = 0

    def seen(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), self.info()

    def info(self):
        return {}

    def told(self):
        return self.seen(), 0.0, self.t >= 10, False, self.info()

    def step(self, action):
        self.t += 1
        return self.told()


class Translated(Good):
    """A wrapper of something that has another interface, which it gives as `unwrapped`."""

    class Own:
        def reset(self, key):
            raise AssertionError("this is not the run's interface")

    unwrapped = Own()


class Keyless(Good):
    def reset(self):
        return super().reset()


def seeds_kept_back():
    class Keep(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset()

    return Keep(Keyless())


class Picture(Good):
    observation_space = S.Box(0, 255, (12, 12, 3), np.uint8)

    def seen(self):
        return np.zeros((12, 12, 3), np.uint8)


class Unbounded(Good):
    action_space = S.Box(-np.inf, np.inf, (2,), np.float32)


class Push(Good):
    action_space = S.Box(-1, 1, (2,), np.float32)


class Words(Good):
    observation_space = S.OneOf((S.Box(-1, 1, (2,), np.float32), S.Discrete(3)))

    def seen(self):
        return self.observation_space.sample()


class NoSpaces(gymnasium.Env):
    pass


class FailingReset(Good):
    def reset(self, *, seed=None, options=None):
        raise FileNotFoundError("level.txt")


class Failing(Good):
    def __init__(self):
        raise RuntimeError("no licence")


class FailingLate(Good):
    def told(self):
        return super().told() if self.number % 2 or self.t < 8 else 1 / 0


class OldStep(Good):
    def told(self):
        return self.seen(), 0.0, False, {}


class OddAtTheEnd(Good):
    def told(self):
        return self.seen(), 0.0, {} if self.t >= 10 else False, False, {}


class NanLate(Good):
    def told(self):
        return self.seen(), float("nan") if self.t == 7 else 0.0, self.t >= 10, False, {}


class Exiting(Good):
    def told(self):
        raise SystemExit(3)


class Unrepeatable(Good):
    def seen(self):
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class Masked(Good):
    action_space = S.MultiDiscrete([2, 3])
    mask = np.array([1, 0, 0, 1, 1], np.int8)

    def info(self):
        return {"action_mask": self.mask}

    def step(self, action):
        assert action[0] == 0 and action[1] > 0, "a forbidden action"
        return super().step(action)


class MaskedByBranch(Masked):
    mask = (np.array([True, False]), np.array([False, True, True]))


class Pool(Good, gymnasium.vector.VectorEnv):
    """Both an Env and a VectorEnv, as EnvPool's are."""

    def __init__(self, num_envs=2):
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = self.observation_space, self.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        none = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 3), np.float32), np.zeros(self.num_envs), none, none, {}


class Pair(pettingzoo.ParallelEnv):
    """Two agents, five steps; a flat mask in the infos."""

    metadata, possible_agents = {"name": "pair"}, ["a", "b"]

    def observation_space(self, agent):
        return S.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return S.MultiDiscrete([2, 2])

    def all(self, value):
        return {agent: value for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.all(np.zeros(2, np.float32)), self.all({"action_mask": np.array([1, 0, 0, 1], np.int8)})

    def step(self, actions):
        assert all(first == 0 and second == 1 for first, second in actions.values()), "a forbidden action"
        self.t += 1
        self.agents = [] if self.t >= 5 else self.agents
        infos = self.all({"action_mask": np.array([1, 0, 0, 1], np.int8)})
        return self.all(np.zeros(2, np.float32)), self.all(0.0), self.ends(), self.all(False), infos

    def ends(self):
        return self.all(self.t >= 5)


class OneEnd(Pair):
    def ends(self):
        return self.t >= 5


gymnasium.register("TriedGood-v0", entry_point=Good)
gymnasium.register("TriedNan-v0", entry_point=NanLate)
'''
TRAINED: dict[str, Any] = {"network_settings": {"hidden_units": 8, "num_layers": 1}}


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """The path of a YAML file beside the environments."""
    import gymnasium

    folder = tmp_path_factory.mktemp("tried")
    (folder / "tried_environments.py").write_text(ENVIRONMENTS, encoding="utf-8")
    yield folder / "file.yaml"
    sys.modules.pop("tried_environments", None)
    for name in ("TriedGood-v0", "TriedNan-v0"):
        gymnasium.registry.pop(name, None)


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    monkeypatch.setattr(trial_run, "TICKS", 40)
    monkeypatch.setattr(trial_run, "ROWS", 32)


def configured(beside: Path, environment: Any, behavior: Any = None, **sections: Any) -> RunConfig:
    if isinstance(environment, str):
        environment = {"factory": f"tried_environments:{environment}"}
    whole = {"kind": "gymnasium", "num_envs": 2, **environment}
    learned = {"trainer_type": "ppo", **TRAINED, **(behavior or {})}
    return RunConfig.from_plain({"environment": whole, "behaviors": {"B": learned}, **sections}, beside)


def words(config: RunConfig, serious: bool, limit_s: float = 30.0) -> list[str]:
    return [remark["text"] for remark in try_run(config, limit_s) if remark["serious"] is serious]


SERIOUS: list[tuple[Any, Any, str]] = [
    ("Picture", {"network_settings": {"vis_encode_type": "simple"}}, "an image of 12×12 pixels .*, too small"),
    ("Unbounded", {"trainer_type": "sac"}, "sac draws continuous actions .* no finite bounds on both sides"),
    ("Words", {}, "observations are of a OneOf space, which is not supported; expected Box"),
    ("NoSpaces", {},
        "it has no observation_space; set self.observation_space in __init__ to a space from gymnasium.spaces"),
    ("FailingReset", {}, r"reset\(\) raised FileNotFoundError: level.txt"),
    ("Failing", {}, r"RuntimeError: no licence \(at .*tried_environments.py:\d+, in __init__"),
    ("FailingLate", {}, r"instance 1: its step\(\) raised ZeroDivisionError: .* \(at .*tried_environments.py:\d+, in told"),
    ("OldStep", {}, "4 values; expected five values: .* split `done`"),
    ("OddAtTheEnd", {}, "{} as `terminated`; expected True or False"),
    ("NanLate", {}, "returned reward nan; expected a finite number"),
    ("Exiting", {}, "requested an exit: SystemExit"),
    ({"id": "tried_environments:TriedNan-v0"}, {}, "TriedNan-v0', instance 0: .* reward nan"),
    ({"id": "CartPole-v9"}, {}, "`v9` for environment `CartPole` doesn't exist"),
    ({"id": "CartPole-v1", "options": {"gravitas": 9}}, {}, "unexpected keyword argument 'gravitas'"),
    ({"kind": "pettingzoo", "factory": "tried_environments:OneEnd"}, {}, "returned a bool as terminations; expected a"),
    ({"kind": "pettingzoo", "id": "pettingzoo.classic.tictactoe_v3"}, {}, "an image of 3×3 pixels .*, too small"),
]  # fmt: skip


@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("environment", "behavior", "expected"), SERIOUS, ids=lambda each: str(each)[:40])
def test_each_mistake_is_found_in_the_words_of_the_run(environment, behavior, expected, beside, tmp_path):
    config = configured(beside, environment, behavior, checkpoint_settings={"results_dir": str(tmp_path)})
    (found,) = words(config, serious=True)
    assert re.search(expected, found), found

    plain = changed(config.to_plain(), {"env_settings__max_lifetime_restarts": 0})
    plain["pipeline"]["hosts"] = {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}
    with pytest.raises(RunFailed) as raised:
        run(RunConfig.from_plain(plain, beside))
    assert str(raised.value).startswith(found.partition(" (restart")[0])


PASSING: list[tuple[Any, Any]] = [
    ("Good", {}),
    ("Translated", {}),
    ("seeds_kept_back", {}),
    ("Push", {"trainer_type": "sac"}),
    ("Good", {"trainer_type": "sac", "hyperparameters": {"update_at": "episode_end", "buffer_init_steps": 10_000}}),
    ("Good", {"trainer_type": "poca"}),
    ("Good", {**TRAINED, "network_settings": {"memory": {"memory_size": 8, "sequence_length": 16}}}),
    ("Picture", {"network_settings": {"vis_encode_type": "match3", "hidden_units": 8, "num_layers": 1}}),
    ("Masked", {}),
    ("Pool", {}),
    ({"kind": "pettingzoo", "factory": "tried_environments:Pair"}, {}),
    ({"id": "CartPole-v1", "options": {"render_mode": "human"}}, {}),
]
ALSO_PASSING: list[tuple[Any, Any]] = [
    ("Good", {"trainer_type": "impala", "hyperparameters": {"batch_size_from_replay": 8}}),
    ("Good", {"reward_signals": {"extrinsic": {}, "curiosity": {}, "rnd": {}}}),
    ("Good", {"self_play": {"save_steps": 10_000}}),
    ("Good", {"stop_when": {"mean_reward": -1}, "even_checkpoints": True}),
    ("MaskedByBranch", {}),
    ({"id": "tried_environments:TriedGood"}, {}),
    ({"id": "CartPole-v1", "num_envs": "auto"}, {}),
]


@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("environment", "behavior"),
    [*PASSING, *(pytest.param(*each, marks=pytest.mark.slow) for each in ALSO_PASSING)],
    ids=str,
)
def test_who_passes_has_made_an_update(environment, behavior, beside, monkeypatch):
    updates = []

    class Counting(trial_run._Trial):
        def _missed(self, coordinator):
            updates.extend(state.version for state in coordinator.starter.behaviors.values())
            return super()._missed(coordinator)

    monkeypatch.setattr(trial_run, "_Trial", Counting)
    assert words(configured(beside, environment, behavior), serious=True) == []
    assert min(updates) >= 1


@pytest.mark.lengthy
def test_what_the_fields_checkers_alone_find_is_advice(beside):
    (told,) = words(configured(beside, "Unrepeatable"), serious=False)
    assert "Gymnasium's own checker (gymnasium.utils.env_checker) says: " in told


@pytest.mark.lengthy
def test_warnings_of_the_run_are_the_trials(beside):
    config = configured(beside, {"factory": "tried_environments:Good", "num_envs": 1})
    plain = config.to_plain()
    plain["behaviors"]["Stranger"] = plain["behaviors"]["B"]
    assert words(RunConfig.from_plain(plain, beside), serious=False) == [
        "Listed under behaviors, but never seen in the environment: Stranger (seen: B)."
    ]


@pytest.mark.lengthy
def test_all_learners_of_a_league_are_tried(beside, monkeypatch):
    met = []

    class Noting(trial_run._Trial):
        def _missed(self, coordinator):
            met.extend(name for name, state in coordinator.starter.behaviors.items() if state.version)
            return super()._missed(coordinator)

    monkeypatch.setattr(trial_run, "_Trial", Noting)
    learners = {"main": {"actors": 3}, "rival": {"matches": [{"match": "newest", "against": "main"}]}}
    plain = {
        "environment": {"kind": "builtin", "id": "RockPaperScissors"},
        "behaviors": {"B": {"trainer_type": "ppo", "league": {"learners": learners}}},
    }
    assert [words(RunConfig.from_plain(plain, beside), each) for each in (True, False)] == [[], []]
    assert sorted(met) == 2 * ["B.main"] + 2 * ["B.rival"]


@pytest.mark.lengthy
def test_files_in_warnings_are_those_of_the_run(beside):
    environment = {"factory": "tried_environments:Good", "action_repeat": {"max": 3}}
    told = words(configured(beside, environment, checkpoint_settings={"run_id": "mine"}), serious=False)
    assert [bool(re.match(r"results.mine.B.B-\d+.onnx could not be written", each)) for each in told] == [True]


@pytest.mark.lengthy
def test_whoever_learns_nothing_in_time_is_named(beside, monkeypatch):
    config = configured(beside, "Good", {"trainer_type": "sac"})
    monkeypatch.setattr(trial_run, "ROWS", 10**6)
    monkeypatch.setattr(trial_run, "TICKS", 10**6)
    (told,) = words(config, serious=False, limit_s=0.01)
    assert told.startswith("not tried: the first update of B, because ")


@pytest.mark.lengthy
def test_nothing_is_left_behind_and_the_runs_folder_is_not_touched(beside, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    writers = [{"use": "tried_environments:NoSuchWriter"}]
    config = configured(beside, "Good", pipeline={"statistics_writers": writers}, record={})
    assert try_run(config) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("environment", "told"),
    [("Good", "the live page can't show the game: .*Good' .Good. renders no images"), ({"id": "CartPole-v1"}, None)],
)
def test_a_game_that_the_live_page_can_not_show_is_named(environment, told, beside):
    found = words(configured(beside, environment, monitor={}), serious=False)
    assert [bool(told and re.search(told, each)) for each in found] == [True] * (told is not None)


@pytest.mark.lengthy
def test_teams_of_several_behaviours_all_learn():
    plain = yaml.safe_load((Path(trial_run.__file__).parents[1] / "config/examples/pursuit.yaml").read_text())
    plain["environment"]["num_envs"] = 4
    assert try_run(RunConfig.from_plain(plain)) == []


@pytest.mark.lengthy
def test_what_is_played_is_tried_with_its_film(beside, tmp_path):
    trained = configured(
        beside,
        {"id": "CartPole-v1"},
        {"max_steps": 64, "hyperparameters": {"buffer_size": 32, "batch_size": 32}},
        checkpoint_settings={"results_dir": str(tmp_path), "run_id": "played"},
        pipeline={"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
    )
    run(trained)
    plain = trained.to_plain()
    plain["checkpoint_settings"] |= {"inference": True}
    plain["inference"] |= {"video": str(tmp_path / "films")}
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert try_run(RunConfig.from_plain(plain, beside)) == []
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before

    plain["environment"] |= {"id": None, "factory": "tried_environments:Good"}
    (refused,) = words(RunConfig.from_plain(plain, beside), serious=True)
    assert "Good' (Good) renders no images" in refused
