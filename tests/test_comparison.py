"""`benchmarks/compare.py` and its references: they do what their pages say, and ratios are told as they are."""

from __future__ import annotations

import sys
from importlib import import_module
from math import nan
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A benchmark as a script sees it: beside its siblings."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module(request.param)


@pytest.mark.parametrize("module", ["reference_numpy_ppo"], indirect=True)
def test_the_reference_steps_cartpole_as_gymnasium_does(module):
    random = np.random.default_rng(0)
    ours, theirs = module.CartPoles(1, random), gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    theirs.__dict__["state"] = ours.observations[0].astype(float)
    for action in random.integers(0, 2, 200):
        fallen, late, last = ours.step(np.array([action]))
        seen, _, terminated, _, _ = theirs.step(int(action))
        np.testing.assert_allclose(last[0], seen, rtol=1e-3, atol=1e-5)
        assert (fallen[0], late[0]) == (terminated, False)
        if terminated:
            break
    assert ours.finished[0] > 5


@pytest.mark.parametrize("module", ["reference_numpy_ppo"], indirect=True)
def test_the_references_gradient_is_that_of_autograd(module):
    random = np.random.default_rng(1)
    net, n = module.Towers(random), 32
    net.weights[2][0] += 0.3 * random.standard_normal(net.weights[2][0].shape)
    observations = random.standard_normal((n, 4)).astype(np.float32)
    taken = np.eye(2, dtype=np.float32)[random.integers(0, 2, n)]
    old, advantages, returns = (random.standard_normal(n).astype(np.float32) for _ in range(3))
    old = -0.7 + 0.3 * old  # some ratios are beyond the clip on either side
    out = net.forward(observations)
    net.backward(n, module.slope_of(out, taken, old, advantages, returns))

    weights = [torch.tensor(weight, requires_grad=True) for weight in net.weights]
    x = torch.tensor(observations).expand(2, n, 4)
    for depth, weight in enumerate(weights):
        x = torch.cat((x, torch.ones(2, n, 1)), dim=2) @ weight
        x = torch.tanh(x) if depth < 2 else x
    chosen = (torch.log_softmax(x[0], dim=1) * torch.tensor(taken)).sum(dim=1)
    a = torch.tensor(advantages)
    a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
    ratio = torch.exp(chosen - torch.tensor(old))
    assert (ratio > 1.2).any()
    assert (ratio < 0.8).any()
    loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    (loss + 0.5 * nn.functional.mse_loss(x[1, :, 0], torch.tensor(returns))).backward()
    expected = np.concatenate([np.asarray(weight.grad).ravel() for weight in weights])
    np.testing.assert_allclose(net.gradient, expected, atol=2e-6)


@pytest.mark.parametrize("module", ["compare_page"], indirect=True)
def test_a_ratio_is_the_median_of_those_within_rounds_beside_its_bar(module):
    Bar = import_module("compare_workloads").Bar

    def took(cpu_us: float) -> object:
        return module.StatisticValues(1e6 / cpu_us, cpu_us, cpu_us)

    found = {"ours": [took(1.0), took(10.0), took(2.0)], "peer": [took(3.0), took(20.0), took(8.0)]}
    bars = [Bar("ours", "peer", cpu=2.0, clock=4.0), Bar("ours", "a peer that was skipped", cpu=1.0)]
    *_, row = module.ratios(module.Workload("", {}, bars), found)
    assert row == "| ours : peer | 3.00 (bar 2) | 3.00 (bar 4, missed) |"


@pytest.mark.parametrize("module", ["compare_page"], indirect=True)
def test_only_the_marked_section_of_the_page_is_written(module, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    module.write(page, ["new"])
    module.write(page, ["newer", "lines"])
    assert page.read_text() == f"before\n{module.BEGIN}\nnewer\nlines\n{module.END}\nafter\n"
    page.write_text("a page without marks")
    with pytest.raises(SystemExit, match="no section between"):
        module.write(page, ["new"])


@pytest.mark.parametrize("module", ["compare_growth"], indirect=True)
def test_what_grows_faster_than_it_may_is_told(module):
    def runs(power: float) -> dict[int, list[object]]:
        return {n: [module.StatisticValues(1.0, 1.0, 3.0 * n**power, memory_mb=50.0 + n)] for n in (16, 64, 256)}

    assert module.exponent({1: 5.0, 2: 20.0, 4: 80.0}) == pytest.approx(2.0)
    assert not [row for row in module.table("environments", runs(0.1)) if "missed" in row]
    (missed,) = [row for row in module.table("environments", runs(0.4)) if "missed" in row]
    assert missed.startswith("| growth exponent of CPU time per step: 0.40, missed: at most 0")


@pytest.mark.parametrize("module", ["compare_runs"], indirect=True)
def test_cpu_time_between_two_moments_is_that_of_each_process(module):
    samples = [(0.0, {1: 0.0}), (10.0, {1: 5.0, 2: 1.0}), (20.0, {1: 5.0, 2: 9.0}), (30.0, {2: 10.0})]
    run = module.Finished(0.0, 30.0, Path(), samples, 0.0)
    assert run.cpu_s(5.0, 25.0) == {1: 2.5, 2: 9.0}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["compare_runs"], indirect=True)
def test_the_command_is_measured_from_outside(module):
    sets = [f"pipeline.hosts.{part}.kind=inline" for part in ("actors", "learners")]
    took = module.pipeline("config/examples/cartpole.yaml", "CartPole", sets, seed=0, steps=10_000, first=2_000)
    assert took.steps_per_s > 0
    assert 0 < took.cpu_us <= took.all_cpu_us
    assert set(took.stages) == {"deciding", "stepping", "update"}
    assert min(took.stages.values()) > 0
    assert 0 < took.first_update_s < took.seconds
    assert took.memory_mb > 50
    assert took.score is not nan


@pytest.mark.parametrize("module", ["compare_runs"], indirect=True)
def test_commands_have_one_thread_and_the_kernels_of_users_machines(module, monkeypatch):
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "1")
    found = module.environment()
    assert not found.keys() & {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH"}
    assert (found["OMP_NUM_THREADS"], found["OPENBLAS_NUM_THREADS"], found["KEPT"]) == ("1", "1", "1")


@pytest.mark.parametrize("module", ["compare_workloads"], indirect=True)
def test_a_peer_does_its_own_workloads(module):
    asked = module.Asked({module.RLTOOLS: "python", module.SBX: "python"}, None, quick=True)
    assert not module.peers(asked, "W1", 10)
    assert list(module.peers(asked, "W4", 10)) == [module.RLTOOLS, module.SBX]
    assert {"RLtools", "sbx"} <= module.w4(asked).contestants.keys()


@pytest.mark.parametrize("module", ["compare"], indirect=True)
def test_a_python_without_its_peer_is_refused_with_what_to_install(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--only", "W4", "--rltools", sys.executable])
    assert "--rltools: in a separate environment, pip install rltools mkl mkl-devel" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="nowhere/python does not run"):
        module.main(["--only", "W4", "--sbx", "nowhere/python"])


@pytest.mark.parametrize("module", ["compare_steps"], indirect=True)
def test_what_a_group_adds_to_its_environments_steps_is_told_beside_its_bar(module):
    costs = {("Pendulum-v1", 64): {module.BARE: 8.0, module.GROUP: 9.25, module.SYNC: 20.5}}
    assert module.table(costs)[-1] == "| 64 × Pendulum-v1 | 8.0 | 9.2 | 1.2 (at most 1.5) | 20.5 | 12.5 |"
    costs["Pendulum-v1", 64][module.GROUP] = 10.0
    assert "2.0 (at most 1.5, missed)" in module.table(costs)[-1]


@pytest.mark.parametrize("module", ["compare_steps"], indirect=True)
def test_each_way_to_step_makes_as_many_steps(module):
    for env_id in module.ENVIRONMENTS:
        ways = module.steppers(env_id, 2)
        assert list(ways) == [module.BARE, module.GROUP, module.SYNC]
        for step in ways.values():
            step()
        assert len(ways[module.GROUP]().steps[env_id].agent_ids) == len(ways[module.SYNC]()[0]) == 2
