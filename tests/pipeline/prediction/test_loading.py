"""`load_policy`: which file of a run it reads, what it says of it, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from onnx_samples import design_for
from predicted import MEMORY, group_of, saved

from headrace import PredictError, RunError, load_policy
from headrace.config import ActionRepeatSettings
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.factory import repeated

BOX = spaces.Box(-2, 2, (3,))


TWO = spaces.Discrete(2)


def spec_of(observed=BOX, done=TWO):
    group, _, _ = group_of(observed, done, num_envs=1)
    return group.behavior_specs["Test"]


@pytest.fixture
def run_folder(tmp_path):
    """A run of two behaviours, one with two steps and a best policy."""
    spec = spec_of()
    for step in (500, 1000):
        saved(tmp_path, spec, seed=step, step=step)
    best = saved(tmp_path, spec, seed=3, step=700)
    best.rename(best.with_name("Test-best.pt"))
    saved(tmp_path, replace(spec_of(BOX, BOX), behavior_id="Other?team=1"), step=40)
    return tmp_path


def test_load_policy_loads_the_requested_behaviour_and_checkpoint(run_folder):
    def read(**which):
        policy = load_policy(run_folder, **which)
        return policy.behavior, policy.step

    assert read(behavior="Test") == read(behavior="Test", checkpoint="last") == ("Test", 1000)
    assert read(behavior="Test", checkpoint="best") == ("Test", 700)
    assert read(behavior="Test", checkpoint=500) == read(behavior="Test?team=0", checkpoint="500") == ("Test", 500)
    assert read(behavior="Other") == ("Other", 40)
    assert load_policy(f"{run_folder}/Test@best").step == 700
    assert repr(load_policy(run_folder / "Other")) == f"LoadedPolicy('Other', step 40, {run_folder}/Other/Other-40.pt)"


def test_a_file_that_is_not_the_requested_policy_is_refused(run_folder, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"hello")
    with pytest.raises(RunError, match="is not a model that onnxruntime can run"):
        load_policy(tmp_path / "broken.onnx")
    with pytest.raises(RunError, match=r"Test-500\.pt is a policy for Test, not for Other"):
        load_policy(run_folder / "Test" / "Test-500.pt", behavior="Other")


def test_a_wrong_path_is_refused_with_the_likely_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "first").mkdir(parents=True)
    with pytest.raises(RunError, match="there is no file or folder first; did you mean 'results/first'"):
        load_policy("first")
    with pytest.raises(
        RunError,
        match=r"expected the folder of a run, or a file, got an int; for the result of run\(\), pass its \.folder",
    ):
        load_policy(3)  # type: ignore[call-overload]


def test_a_policy_describes_what_it_sees_and_does(tmp_path):
    spec = repeated(spec_of(BOX, spaces.MultiBinary(3)), ActionRepeatSettings(steps=4))
    policy = load_policy(saved(tmp_path, spec, **MEMORY))

    assert (policy.behavior, policy.step, policy.action_repeat) == ("Test", 700, 4)
    assert policy.file == tmp_path / "Test" / "Test-700.pt"
    assert str(policy.observation_space) == "Box(-2.0, 2.0, (3,), float32)"
    assert (policy.observation_space.shape, policy.observation_space.dtype) == ((3,), np.float32)
    assert str(policy.action_space) == "MultiBinary((3,))"
    assert policy.state_size == 6 + 6


def test_action_repeat_is_none_if_the_file_does_not_state_it(tmp_path):
    columns = repeated(design_for().spec, ActionRepeatSettings(steps=3))
    unstated = replace(columns, spaces=None)

    assert load_policy(saved(tmp_path / "a", columns)).action_repeat == 3
    assert load_policy(saved(tmp_path / "b", unstated)).action_repeat is None


def test_a_policy_with_learned_action_repeat_returns_step_mul_with_each_action(tmp_path):
    spec = repeated(spec_of(BOX, spaces.Discrete(2, start=7)), ActionRepeatSettings(max=5))
    policy = load_policy(saved(tmp_path, spec))

    actions, _ = policy.predict(np.zeros((4, 3)), mask=[[0, 1]] * 4)

    assert policy.action_repeat == 5
    assert actions["action"].tolist() == [8] * 4
    assert set(actions["step_mul"].tolist()) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
def test_a_policy_without_spaces_answers_in_named_columns(tmp_path, suffix):
    seen = (ObservationSpec("eye", (20, 20, 3), "uint8", channels_last=True), ObservationSpec("place", (2,)))
    spec = design_for(*seen, actions=ActionSpec(2, (3, 2), masked=True, unbounded=(1,))).spec
    policy = load_policy(saved(tmp_path, spec, suffix))
    one: dict[str, Any] = {"eye": np.zeros((20, 20, 3), np.uint8), "place": [1, 2]}

    action, _ = policy.predict(one, mask=[0, 0, 1, 1, 1])
    actions, _ = policy.predict({name: np.stack([value, value]) for name, value in one.items()})

    assert {name: value.dtype.name for name, value in action.items()} == {"continuous": "float32", "discrete": "int32"}
    assert (action["continuous"].shape, actions["continuous"].shape, actions["discrete"].shape) == (
        (2,),
        (2, 2),
        (2, 2),
    )
    assert action["discrete"][0] == 2
    np.testing.assert_allclose(actions["continuous"][0], action["continuous"], rtol=0, atol=1e-6)


def test_a_lone_observation_without_spaces_needs_no_name_and_those_of_one_name_come_in_order(tmp_path):
    alone = load_policy(saved(tmp_path, design_for().spec))
    twins = load_policy(saved(tmp_path / "twins", design_for(*[ObservationSpec("ray", (2,))] * 2).spec))

    assert alone.predict(np.zeros(3))[0]["continuous"].shape == (2,)
    assert twins.predict(([0, 1], [2, 3]))[0]["continuous"].shape == (2,)
    with pytest.raises(PredictError, match=r"obs: expected an observation in Tuple"):
        twins.predict({"ray": [0, 1]})


@pytest.mark.parametrize(
    "spaces_said",
    [
        {"observation": {"kind": "Box"}, "action": {}},
        {"action": None},
        {"observation": {"kind": "Discrete", "sizes": 4, "start": 0, "dtype": "int64"}},
        {"observation": {"kind": "Box", "shape": [10**9], "dtype": "float32", "low": 0, "high": 1}},
        {"action": {"kind": "Box", "shape": [10**13], "dtype": "float32", "low": 0, "high": 1}},
        {"action": {"kind": "Discrete", "sizes": 3, "start": 0, "dtype": "int64"}},
    ],
)
def test_spaces_that_do_not_match_the_policy_are_refused_with_the_file(tmp_path, spaces_said):
    spec = spec_of()
    with pytest.raises(RunError, match=r"Test-700\.pt: .*spaces"):
        load_policy(saved(tmp_path, replace(spec, spaces={**spec.spaces, **spaces_said})))


@pytest.mark.lengthy
def test_an_onnx_policy_loads_without_torch_or_environment_libraries(tmp_path):
    file = saved(tmp_path, spec_of(spaces.Dict(at=BOX, gear=spaces.Discrete(3))), ".onnx")
    script = (
        "import sys; from headrace import load_policy\n"
        f"policy = load_policy({str(file)!r})\n"
        "print(policy.predict({'at': [0, 0, 0], 'gear': 2}).action in (0, 1))\n"
        "print([name for name in ('torch', 'gymnasium', 'pettingzoo', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "[]"], done.stderr
