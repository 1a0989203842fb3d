"""A trainer that asks for a column of the policies gets it: in runs, recordings and replays."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, Plain, cartpole, changed
from run_folders import streams, weights_digest

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import RunOptions, RunResult, run

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
NAME = "watched_trainer:WatchedPPO"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A YAML's folder with the trainer that docs/extending.md shows."""
    (source,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "WatchedPPO" in code]
    (tmp_path / "watched_trainer.py").write_text(source)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("watched_trainer", None)


def run_in(folder: Path, plain: Plain, run_id: str, options: RunOptions | None = None, **settings: bool) -> RunResult:
    checkpoints = {"results_dir": str(folder), "run_id": run_id, **settings}
    whole = {**changed(plain, INLINE), "checkpoint_settings": checkpoints}
    return run(RunConfig.from_plain(whole, folder / "config.yaml"), options)


def tiny(trainer_type: str = NAME) -> Plain:
    plain = cartpole(behaviors__CartPole__max_steps=1500, record__edges=["trainer"])
    # A class of one's own has the defaults of all trainers, not those of the kind of environment.
    plain["behaviors"] = RunConfig.from_plain(plain).to_plain()["behaviors"]
    return changed(plain, {"behaviors__CartPole__trainer_type": trainer_type})


def replaying(plain: Plain, run_folder: Path) -> Plain:
    again = changed(plain, {"replay__streams": list(streams(run_folder))})
    del again["record"]
    return again


def test_an_extra_column_does_not_change_learning_and_a_recording_without_it_is_refused(folder):
    for name, trainer_type in (("base", "ppo"), ("asking", NAME)):
        run_in(folder, changed(tiny(trainer_type), {"pipeline__deterministic": True}), name)
    assert weights_digest(folder / "asking") == weights_digest(folder / "base")
    with pytest.raises(
        RunFailed, match=r"CartPole: the trainer needs the column action_heads .*record again with these settings"
    ):
        run_in(folder, replaying(tiny(), folder / "base"), "refused")
    run_in(folder, replaying(tiny("ppo"), folder / "asking"), "unasked")
    assert weights_digest(folder / "unasked") == weights_digest(folder / "base")


def test_a_column_that_no_policy_provides_ends_the_run_at_its_start(folder, in_this_process):
    (folder / "watched_trainer.py").write_text(
        "from headrace.stages.trainer.ppo import PPOTrainer\n\n\nclass WatchedPPO(PPOTrainer):\n    extra_columns = ('values',)\n"
    )
    with pytest.raises(
        RunFailed, match=r"CartPole\.trainer_type: .* requests the columns values, .* must compute a baseline"
    ):
        run_in(folder, tiny(), "refused")
    (folder / "config.yaml").write_text(yaml.safe_dump(tiny()))
    said = in_this_process(main, str(folder / "config.yaml"), "--validate", status=2)
    assert "requests the columns values, which no policy provides" in said
