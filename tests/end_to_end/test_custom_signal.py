"""examples/custom_signal: a reward signal named in the YAML trains a policy beside the environment's reward."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from run_configs import INLINE, cartpole, sac
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


@pytest.mark.parametrize(
    ("make", "behavior", "steps"), [(cartpole, "CartPole", 1000), (sac, "Pendulum", 300)], ids=["ppo", "sac"]
)
def test_it_sees_each_step_once_and_is_part_of_the_checkpoint(make, behavior, steps, tmp_path):
    def visits():
        trainer = read_whole_checkpoint(tmp_path / "run")[f"trainer@learner-{behavior}"]["trainer"]
        signals = trainer["signals"].get("signals", trainer["signals"])
        return trainer["step"], int(signals["visits"]["visits"].sum())

    for max_steps, resume in ((steps, False), (2 * steps, True)):
        changes = {
            f"behaviors__{behavior}__reward_signals": {"extrinsic": {}, "visits": VISITS},
            f"behaviors__{behavior}__max_steps": max_steps,
        }
        run_beside_it(make(**changes, **INLINE), tmp_path, resume=resume)
        seen, counted = visits()
        assert max_steps <= seen == counted


def test_a_mistake_in_its_arguments_ends_the_run_and_names_the_key(tmp_path):
    signals = {"visits": {"use": "my_signal:Visits", "with": {"size": -1}}}
    with pytest.raises(RunFailed, match=r"reward_signals\.visits.*size: expected numbers above 0, got -1"):
        run_beside_it(cartpole(behaviors__CartPole__reward_signals=signals, **INLINE), tmp_path)


def test_the_configuration_beside_it_is_valid():
    settings = load_config(EXAMPLE / "config.yaml").behavior_settings("MountainCar")
    assert list(settings.signals) == ["extrinsic", "visits"]
