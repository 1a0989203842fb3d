"""A trainer that asks for a column of the policies gets it: in runs, recordings and replays."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_configs import INLINE, Plain, cartpole, changed, remembering, volley
from run_folders import streams, weights_digest
from runs import Command

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import RunOptions, RunResult, run
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.stream_file import StreamReader

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


def play(folder: Path, plain: Plain, run_id: str) -> StreamReader:
    """Play a run's policy until the first report; a recording of it."""
    stop = asyncio.Event()
    options = RunOptions(stop=stop, on_progress=lambda snapshot: stop.set())
    run_in(folder, changed(plain, {"record__edges": ["agent_processor"]}), run_id, options, inference=True)
    return StreamReader(streams(folder / run_id)[-1])


def tiny(trainer_type: str = NAME) -> Plain:
    plain = cartpole(behaviors__CartPole__max_steps=1500, record__edges=["trainer"])
    # A class of one's own has the defaults of all trainers, not those of the kind of environment.
    plain["behaviors"] = RunConfig.from_plain(plain).to_plain()["behaviors"]
    return changed(plain, {"behaviors__CartPole__trainer_type": trainer_type})


def replaying(plain: Plain, run_folder: Path) -> Plain:
    again = changed(plain, {"replay__streams": list(streams(run_folder))})
    del again["record"]
    return again


@pytest.mark.slow
def test_the_command_trains_records_and_replays_with_the_column(folder):
    command = Command(folder, changed(tiny(), {"pipeline__hosts__actors__kind": "inline"}))
    try:
        assert command.wait() == 0, command.output
    finally:
        command.end()
    reader = StreamReader(streams(command.run_folder)[0])
    rows = {column.name: column for column in reader.header.columns["CartPole"]["rows"]}
    assert (rows["action_heads"].dtype, rows["action_heads"].shape) == ("float32", (2,))
    batches = [frame.message for frame in reader if isinstance(frame.message, TrajectoryBatch)]
    assert batches
    for batch in batches:
        logits, chosen = batch.rows["action_heads"], batch.rows["discrete_actions"]
        log_probs = np.take_along_axis(logits, chosen, 1) - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(batch.rows["log_probs"], log_probs, atol=1e-5)
    run_in(folder, replaying(tiny(), command.run_folder), "replay")
    assert weights_digest(folder / "replay") == weights_digest(command.run_folder)


def test_what_is_asked_for_changes_nothing_of_what_is_learned_and_a_recording_without_it_is_refused(folder):
    for name, trainer_type in (("base", "ppo"), ("asking", NAME)):
        run_in(folder, changed(tiny(trainer_type), {"pipeline__deterministic": True}), name)
    assert weights_digest(folder / "asking") == weights_digest(folder / "base")
    with pytest.raises(
        RunFailed, match=r"CartPole: the trainer needs the column action_heads .*record again with these settings"
    ):
        run_in(folder, replaying(tiny(), folder / "base"), "refused")
    run_in(folder, replaying(tiny("ppo"), folder / "asking"), "unasked")
    assert weights_digest(folder / "unasked") == weights_digest(folder / "base")


def test_play_of_a_trained_policy_is_recorded_with_the_column_and_play_of_a_model_without(folder):
    plain = tiny()
    del plain["record"]
    run_in(folder, plain, "run")
    of_policy = play(folder, plain, "run")
    for file in (folder / "run" / "CartPole").glob("*.pt"):
        file.unlink()
    of_model = play(folder, plain, "run")
    for reader, expected in ((of_policy, True), (of_model, False)):
        (spec,) = reader.header.specs
        announced = [column.name for column in reader.header.columns[spec.behavior_id]["rows"]]
        batch = next(frame.message for frame in reader if isinstance(frame.message, TrajectoryBatch))
        assert ("action_heads" in announced) == ("action_heads" in batch.rows) == expected
    with pytest.raises(
        RunFailed, match=r"column action_heads .*played no \.onnx model: record again with these settings"
    ):
        run_in(folder, changed(plain, {"replay__streams": [str(of_model.path)]}), "refused")


@pytest.mark.parametrize(
    "plain",
    [
        remembering(behaviors__CartPole__trainer_type=NAME, behaviors__CartPole__max_steps=400),
        volley(behaviors__Volley__trainer_type=NAME, behaviors__Volley__max_steps=2000),
    ],
    ids=["memory", "self-play"],
)
def test_policies_with_a_memory_and_opponents_give_the_column(folder, plain):
    behavior = next(iter(plain["behaviors"]))
    assert run_in(folder, plain, "run").behaviors[behavior].version > 0


def test_columns_that_nobody_gives_end_the_run_at_its_start_with_the_reason(folder, in_this_process):
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
