"""Runs leave `.onnx` files, and such files play: ours, and those of others."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil

import numpy as np
import onnx
import pytest
import torch
from run_configs import INLINE, cartpole, changed
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.policies.export import exports_by_step, read_export
from headrace.pipeline.run import RunOptions, run
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.onnx.onnx_policy import OnnxPolicy

PLAIN = cartpole()
SHORT = cartpole(**INLINE, behaviors__CartPole__max_steps=2500, behaviors__CartPole__keep_checkpoints=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that has ended."""
    plain = changed(PLAIN, {**INLINE, "behaviors__CartPole__keep_checkpoints": 2})
    return run_here(plain, tmp_path_factory.mktemp("trained"), "run").folder


def played(plain, results, run_id="run", **how):
    """Play until the first report; the steps."""
    stop = asyncio.Event()
    options = RunOptions(stop=stop, on_progress=lambda snapshot: stop.set())
    return run_here(plain, results, run_id, options, inference=True, **how).behaviors["CartPole"].step


def test_a_run_exports_at_each_checkpoint_and_lists_its_exports(trained):
    """test_command_line.py tests the messages about them."""
    folder = trained
    policies, models = (exports_by_step(folder / "CartPole", "CartPole", suffix) for suffix in (".pt", ".onnx"))
    assert len(models) == 2, "as many as keep_checkpoints says"
    assert [path.stem for path in models] == [path.stem for path in policies]
    last = folder / "CartPole.onnx"
    assert last.read_bytes() == models[-1].read_bytes()
    for path in (*models, last):
        onnx.checker.check_model(onnx.load(path), full_check=True)
    status = json.loads((folder / "run_logs" / "training_status.json").read_text())["CartPole"]
    assert [entry["file_path"] for entry in status["checkpoints"]] == [str(path) for path in models]
    assert [entry["auxillary_file_paths"] for entry in status["checkpoints"]] == [[str(path)] for path in policies]
    assert status["final_checkpoint"]["file_path"].endswith("CartPole.onnx")
    assert status["final_checkpoint"]["auxillary_file_paths"] == [str(policies[-1])]


def test_the_model_acts_as_the_policy_of_the_same_step(trained):
    path = exports_by_step(trained / "CartPole", "CartPole")[-1]
    export = read_export(path)
    policy = make_policy(export.design)
    policy.load(export.update)
    model = OnnxPolicy(path.with_suffix(".onnx"), export.design)
    seen = (np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32),)
    ours, theirs = (p.act(seen, None, np.random.default_rng(1), deterministic=True) for p in (policy, model))
    np.testing.assert_array_equal(ours.actions.discrete, theirs.actions.discrete)
    assert 0 < ours.actions.discrete.sum() < 64


def test_a_run_is_played_by_its_checkpoint_or_by_its_model(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    with_policies = changed(PLAIN, INLINE)
    assert played(with_policies, tmp_path) > 0
    for path in (tmp_path / "run" / "CartPole").glob("*.pt"):
        path.unlink()
    assert played(with_policies, tmp_path) > 0


def test_a_model_plays_without_a_run(trained, tmp_path):
    model = str(trained / "CartPole.onnx")
    plain = changed(PLAIN, {**INLINE, "behaviors__CartPole__init_path": model})
    assert played(plain, tmp_path, "new") > 0
    with pytest.raises(RunError, match="can be played .* but not trained further"):
        run_here(plain, tmp_path, "other")


def test_a_run_folder_of_ml_agents_plays_by_its_models(trained, tmp_path):
    """Its `.pt` files are called as ours are, and hold something else."""
    folder = tmp_path / "run" / "CartPole"
    folder.mkdir(parents=True)
    shutil.copy(trained / "CartPole.onnx", folder / "CartPole-500.onnx")
    for name in ("CartPole-500.pt", "checkpoint.pt"):
        torch.save({"Policy": {"weight": torch.zeros(2)}, "global_step": {}}, folder / name)
    assert played(changed(PLAIN, INLINE), tmp_path) > 0


def test_a_model_of_another_environment_is_refused(trained, tmp_path):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    shutil.copy(trained / "CartPole.onnx", run_folder)
    plain = changed(PLAIN, {**INLINE, "environment__id": "Acrobot-v1", "environment__behavior": "CartPole"})
    with pytest.raises(RunFailed, match=r"made for .*\[2\].*environment has .*\[3\]"):
        run_here(plain, tmp_path, "run", inference=True)


def test_a_policy_that_can_not_be_exported_costs_a_warning_and_no_checkpoint(tmp_path, caplog):
    (tmp_path / "odd_network.py").write_text(ODD)
    plain = changed(SHORT, {"behaviors__CartPole__network_settings__network": "odd_network:Odd"})
    with caplog.at_level(logging.WARNING):
        plain = {**plain, "checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run"}}
        result = run(RunConfig.from_plain(plain, tmp_path / "config.yaml"))
    assert result.checkpoint >= 1
    assert result.behaviors["CartPole"].export.suffix == ".pt"
    assert not list(result.folder.rglob("*.onnx"))
    told = [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()]
    assert len(told) == 1, "once, not with every checkpoint"
    assert "network_settings.network can't be written to ONNX" in told[0]


ODD = '''
import torch
from torch import nn

class Odd(nn.Module):
    """Calls what no operator set has."""

    def __init__(self, observations, settings):
        super().__init__()
        self.encoding_size = 8
        self.linear = nn.Linear(4, 8)

    def forward(self, observations):
        return torch.sinc(self.linear(observations[0]))
'''
