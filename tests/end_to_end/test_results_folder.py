"""What a run leaves on disk, read as tools made for ML-Agents read it: by its names, without any code of ours."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from run_configs import INLINE, cartpole, changed
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed

CHECKPOINT_KEYS = {"steps", "file_path", "reward", "creation_time", "auxillary_file_paths"}


@pytest.fixture(scope="module")
def began() -> float:
    return time.time()


@pytest.fixture(scope="module")
def run(tmp_path_factory, began) -> Path:
    """The folder of a run with three checkpoints, of which two are kept."""
    plain = cartpole(behaviors__CartPole__keep_checkpoints=2, **INLINE)
    return run_here(plain, tmp_path_factory.mktemp("results"), "run").folder


def read(run: Path, name: str) -> dict:
    return json.loads((run / "run_logs" / name).read_text(encoding="utf-8"))


def test_everything_is_where_ml_agents_has_it(run):
    assert {"configuration.yaml", "CartPole.onnx", "CartPole", "run_logs"} <= {path.name for path in run.iterdir()}
    assert {path.name for path in (run / "run_logs").iterdir()} == {"run.log", "training_status.json"}
    files = {path.name for path in (run / "CartPole").iterdir()}
    events = {name for name in files if name.startswith("events.out.tfevents.")}
    steps = [entry["steps"] for entry in read(run, "training_status.json")["CartPole"]["checkpoints"]]
    models = {f"CartPole-{step}.{kind}" for step in steps for kind in ("onnx", "pt")}
    assert len(events) == 1
    assert files == {"checkpoint.pt"} | models | events


def test_the_status_has_the_versions_that_ml_agents_asks_for(run):
    metadata = read(run, "training_status.json")["metadata"]
    assert set(metadata) == {"stats_format_version", "mlagents_version", "torch_version", "checksum"}
    assert metadata["stats_format_version"] == "0.3.0"


def test_the_status_lists_the_checkpoints_that_are_kept_oldest_first(run, began):
    checkpoints = read(run, "training_status.json")["CartPole"]["checkpoints"]
    assert len(checkpoints) == 2
    assert [entry["steps"] for entry in checkpoints] == sorted(entry["steps"] for entry in checkpoints)
    for entry in checkpoints:
        assert set(entry) == CHECKPOINT_KEYS
        assert Path(entry["file_path"]) == run / "CartPole" / f"CartPole-{entry['steps']}.onnx"
        assert [Path(path) for path in entry["auxillary_file_paths"]] == [Path(entry["file_path"]).with_suffix(".pt")]
        assert all(Path(path).is_file() for path in (entry["file_path"], *entry["auxillary_file_paths"]))
        assert isinstance(entry["reward"], float)
        assert began <= entry["creation_time"] <= time.time()


def test_the_final_checkpoint_is_the_model_at_the_top_of_the_run(run):
    status = read(run, "training_status.json")["CartPole"]
    final, last = status["final_checkpoint"], status["checkpoints"][-1]
    assert set(final) == CHECKPOINT_KEYS
    assert Path(final["file_path"]) == run / "CartPole.onnx"
    assert (final["steps"], final["reward"]) == (last["steps"], last["reward"])
    assert (run / "CartPole.onnx").read_bytes() == Path(last["file_path"]).read_bytes()


def test_checkpoint_pt_is_the_newest_of_them(run):
    last = read(run, "training_status.json")["CartPole"]["checkpoints"][-1]
    newest = torch.load(run / "CartPole" / "checkpoint.pt", weights_only=True)
    assert newest["step"] == last["steps"]
    (numbered,) = last["auxillary_file_paths"]
    assert (run / "CartPole" / "checkpoint.pt").read_bytes() == Path(numbered).read_bytes()


def test_the_configuration_has_all_sections_of_ml_agents_with_their_values(run):
    configuration = yaml.safe_load((run / "configuration.yaml").read_text(encoding="utf-8"))
    assert configuration["checkpoint_settings"]["run_id"] == "run"
    assert configuration["env_settings"]["seed"] == 3
    assert configuration["engine_settings"]["time_scale"] == 20
    assert configuration["behaviors"]["CartPole"]["hyperparameters"]["buffer_size"] == 500
    assert configuration["behaviors"]["CartPole"]["keep_checkpoints"] == 2
    assert {"default_settings", "environment_parameters", "torch_settings", "debug"} <= set(configuration)


# Going on from it. ---------------------------------------------------------------------------------------------------


def starts_from(plain: dict, results: Path, caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    """What a run says that it starts from."""
    caplog.set_level("INFO")
    caplog.clear()
    short = changed(plain, {"behaviors__CartPole__max_steps": 500, **INLINE})
    run_here(short, results, "next", **settings)
    (told,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Initializing from")]
    return told


def test_a_run_may_start_from_checkpoint_pt_by_its_path(run, tmp_path, caplog):
    path = str(run / "CartPole" / "checkpoint.pt")
    told = starts_from(cartpole(behaviors__CartPole__init_path=path), tmp_path, caplog)
    assert told == f"Initializing from {path}."


def test_a_run_may_start_from_checkpoint_pt_by_its_name_and_the_runs(run, tmp_path, caplog):
    (tmp_path / "run").symlink_to(run)
    plain = cartpole(behaviors__CartPole__init_path="checkpoint.pt")
    told = starts_from(plain, tmp_path, caplog, initialize_from="run")
    assert told == f"Initializing from {tmp_path / 'run' / 'CartPole' / 'checkpoint.pt'}."


def test_an_unreadable_run_of_ml_agents_is_refused_and_left_unchanged(tmp_path):
    theirs = tmp_path / "theirs" / "CartPole"
    theirs.mkdir(parents=True)
    torch.save({"Policy": {"weight": torch.zeros(2)}, "global_step": {}}, theirs / "checkpoint.pt")
    with pytest.raises(RunError, match="is not an ML-Agents checkpoint of ppo, sac or poca"):
        run_here(cartpole(**INLINE), tmp_path, "theirs", resume=True)
    with pytest.raises(RunFailed, match="is not an ML-Agents checkpoint of ppo, sac or poca"):
        run_here(cartpole(**INLINE), tmp_path, "ours", initialize_from="theirs")
    assert [path.name for path in (tmp_path / "theirs").rglob("*")] == ["CartPole", "checkpoint.pt"]
