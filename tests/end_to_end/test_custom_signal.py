"""examples/custom_signal: a reward signal named in the YAML trains a policy beside the environment's reward."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from run_configs import INLINE, cartpole
from run_folders import read_whole_checkpoint

from headrace.config import RunConfig, load_config
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import RunResult, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_signal"
VISITS = {"use": "my_signal:Visits", "with": {"size": 0.5}}


@pytest.fixture(autouse=True)
def the_path_as_it_was(monkeypatch):
    """Modules beside a YAML stay importable for as long as the process lives."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def run_beside_it(plain, results: Path, **settings) -> RunResult:
    whole = {**plain, "checkpoint_settings": {"results_dir": str(results), "run_id": "run", **settings}}
    return run(RunConfig.from_plain(whole, EXAMPLE / "config.yaml"))


def test_a_custom_signal_sees_each_step_once_and_is_part_of_the_checkpoint(tmp_path):
    for max_steps, resume in ((1000, False), (2000, True)):
        signals = {"extrinsic": {}, "visits": VISITS}
        plain = cartpole(
            behaviors__CartPole__reward_signals=signals, behaviors__CartPole__max_steps=max_steps, **INLINE
        )
        run_beside_it(plain, tmp_path, resume=resume)
        trainer = read_whole_checkpoint(tmp_path / "run")["trainer@learner-CartPole"]["trainer"]
        assert max_steps <= trainer["step"] == trainer["signals"]["signals"]["visits"]["visits"].sum()


def test_a_mistake_in_a_signals_arguments_ends_the_run_and_names_the_key(tmp_path):
    signals = {"visits": {"use": "my_signal:Visits", "with": {"size": -1}}}
    with pytest.raises(RunFailed, match=r"reward_signals\.visits.*size: expected numbers above 0, got -1"):
        run_beside_it(cartpole(behaviors__CartPole__reward_signals=signals, **INLINE), tmp_path)


def test_the_examples_configuration_is_valid():
    settings = load_config(EXAMPLE / "config.yaml").behavior_settings("MountainCar")
    assert list(settings.signals) == ["extrinsic", "visits"]
