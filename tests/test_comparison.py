"""`benchmarks/compare.py` and its references: they do what their pages say, and ratios are told as they are."""

from __future__ import annotations

from importlib import import_module
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
def test_only_the_marked_section_of_the_page_is_written(module, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    module.write(page, ["new"])
    module.write(page, ["newer", "lines"])
    assert page.read_text() == f"before\n{module.BEGIN}\nnewer\nlines\n{module.END}\nafter\n"
    page.write_text("a page without marks")
    with pytest.raises(SystemExit, match="no section between"):
        module.write(page, ["new"])
