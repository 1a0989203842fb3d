"""Folders and files whose names are no UTF-8, as disks of Unix may have them: runs live in them as in others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, cartpole
from runs import Command, run_here

from headrace import load_policy
from headrace.config import load_config

pytestmark = pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode there")
NAME = b"r\xe9sultats".decode(errors="surrogateescape")
PLAIN = cartpole(behaviors__CartPole__max_steps=600, behaviors__CartPole__checkpoint_interval=300, **INLINE)


def test_a_run_is_trained_resumed_and_played_in_one(tmp_path):
    results = tmp_path / NAME
    trained = run_here(PLAIN, results, NAME)
    assert trained.folder == results / NAME
    kept = load_config(trained.folder / "configuration.yaml", ["behaviors.CartPole.max_steps=900"])
    assert Path(kept.checkpoint_settings.results_dir) == results
    resumed = run_here(kept.to_plain() | {"checkpoint_settings": {}}, results, NAME, resume=True).behaviors["CartPole"]
    assert resumed.step > trained.behaviors["CartPole"].step
    run_here({**PLAIN, "inference": {"episodes": 1}}, results, NAME, inference=True)
    assert load_policy(trained.folder).predict([0.0] * 4)


@pytest.mark.slow
def test_a_policy_may_lie_in_one(tmp_path, caplog):
    first = run_here(PLAIN, tmp_path / NAME, "run")
    plain = cartpole(behaviors__CartPole__init_path=str(first.folder / "CartPole" / "checkpoint.pt"), **INLINE)
    plain["behaviors"]["CartPole"]["max_steps"] = 600
    assert run_here(plain, tmp_path, "second").behaviors["CartPole"].step >= 600
    assert "raised" not in caplog.text, "not even by a writer of statistics"


@pytest.mark.slow
def test_hosts_in_processes_find_it_too(tmp_path):
    folder = tmp_path / NAME
    command = Command(folder, cartpole(), run_id=NAME)
    try:
        assert command.wait() == 0, command.output
    finally:
        command.end()
    config = yaml.safe_load((folder / "results" / NAME / "configuration.yaml").read_text())
    assert config["checkpoint_settings"]["run_id"] == NAME
