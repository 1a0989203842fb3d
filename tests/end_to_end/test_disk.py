"""A disk that refuses costs a file or a checkpoint, not the training."""

from __future__ import annotations

import errno
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from full_disk import files_no_larger_than
from run_configs import INLINE, cartpole, volley
from run_folders import read_whole_checkpoint
from runs import COMMAND, PATIENCE_S, Command, run_here

from headrace.pipeline.common.errors import RunFailed, RunFolderError
from headrace.pipeline.run_folder.atomic_files import FileOperations
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.stream_file import StreamReader


@pytest.fixture
def refuse(monkeypatch):
    """Lets the disk refuse whatever is done to paths for which a function says so; each path is noted."""
    refused: list[Path] = []

    def refuse(condition):
        perform = FileOperations.perform

        def refusing(self, operation, function, *arguments, **keywords):
            path = arguments[0]
            if isinstance(path, Path) and condition(operation, path):
                refused.append(path)
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return perform(self, operation, function, *arguments, **keywords)

        monkeypatch.setattr(FileOperations, "perform", refusing)
        return refused

    return refuse


@pytest.mark.parametrize(
    ("plain", "part", "operation", "name", "deterministic"),
    [
        (volley, "trainer@learner-Volley", "mkdir", "000001", False),
        (volley, "ghost@main", "open", ".ghost%40main", True),
        (cartpole, "trainer@learner-CartPole", "open", ".trainer%40learner-CartPole", False),
    ],
)
def test_a_part_that_can_not_be_written_costs_that_checkpoint_alone(
    tmp_path, refuse, caplog, plain, part, operation, name, deterministic
):
    def second_checkpoint(done, path):
        return done == operation and path.name.startswith(name) and "000001" in str(path)

    refused = refuse(second_checkpoint)
    made = plain(**INLINE)
    made["pipeline"]["deterministic"] = deterministic
    (settings,) = made["behaviors"].values()
    settings |= {"max_steps": 2900, "checkpoint_interval": 700}
    result = run_here(made, tmp_path, "run")
    assert refused
    assert next(iter(result.behaviors.values())).step >= 2900
    assert result.checkpoint >= 3
    read_whole_checkpoint(result.folder)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "Checkpoint 1 could not be written, so the previous one is kept" in record.message
    assert "No space left on device" in record.message
    assert part in record.message or operation == "mkdir"  # the first to come makes the folder


def test_a_checkpoint_that_can_not_be_made_real_costs_that_checkpoint_alone(tmp_path, refuse, caplog):
    seen = []

    def from_the_third(operation, path):
        made_real = operation == "replace" and path.name.endswith(".unfinished")
        if made_real:
            seen.append(newest_checkpoint(path.parent))
        return made_real and len(seen) == 3

    refuse(from_the_third)
    result = run_here(cartpole(**INLINE, behaviors__CartPole__checkpoint_interval=600), tmp_path, "run")
    assert [None if one is None else one.number for one in seen[:5]] == [None, 0, 1, 1, 3]
    assert "Checkpoint 2 could not be written" in caplog.text
    assert result.checkpoint == len(seen) - 1


def test_a_run_whose_last_checkpoint_can_not_be_written_fails_and_says_where_to_go_on(tmp_path, refuse):
    run = tmp_path / "run"

    def after_the_first(operation, path):
        return operation == "replace" and ".unfinished" in str(path) and (run / "checkpoints" / "000000").exists()

    refuse(after_the_first)
    with pytest.raises(RunFailed, match="last checkpoint could not be written.*No space left") as failed:
        run_here(cartpole(**INLINE), tmp_path, "run")
    assert "--run-id run --resume" in str(failed.value)
    checkpoint = newest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.number == 0
    read_whole_checkpoint(run)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (r"\.CartPole-3\d+\.pt", "/CartPole: No space left"),
        pytest.param(r"\.checkpoint\.pt", "/CartPole: No space left", marks=pytest.mark.slow),
        pytest.param(r"\.CartPole-3\d+\.onnx", r"CartPole-3\d+\.onnx: No space left", marks=pytest.mark.slow),
        pytest.param(r"\.CartPole\.onnx", r"CartPole\.onnx: No space left", marks=pytest.mark.slow),
    ],
)
def test_a_final_policy_that_can_not_be_written_is_a_failure_although_older_ones_are_there(
    tmp_path, monkeypatch, refuse, file, named
):
    plain, folder = cartpole(**INLINE), tmp_path / "run" / "CartPole"
    with monkeypatch.context(), pytest.raises(RunFailed) as failed:
        refuse(lambda done, path: done == "open" and re.match(file, path.name) and any(folder.glob("*-2*.pt")))
        run_here(plain, tmp_path, "run")
    assert re.search(rf"the final policy could not be written for CartPole \(.*{named}.*\)", str(failed.value))
    assert "--run-id run --resume" in str(failed.value)
    checkpoint = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.steps["CartPole"] >= 3000
    monkeypatch.undo()
    result = run_here(plain, tmp_path, "run", resume=True)
    assert result.behaviors["CartPole"].export == folder / f"CartPole-{checkpoint.steps['CartPole']}.pt"
    assert (tmp_path / "run" / "CartPole.onnx").is_file()


@pytest.mark.slow
def test_a_policy_that_can_not_be_written_in_between_is_no_failure(tmp_path, refuse):
    refused = refuse(lambda done, path: done == "open" and path.name.startswith(".CartPole-1"))
    assert run_here(cartpole(**INLINE), tmp_path, "run").checkpoint >= 2
    assert refused


@pytest.mark.slow
def test_hosts_in_processes_go_on_as_well(start):
    """Where a checkpoint's folder should be made stands a file: nothing can be written below it."""
    command = start(cartpole(behaviors__CartPole__checkpoint_interval=700))
    in_the_way = command.run_folder / "checkpoints" / "000001.unfinished"
    command.until(in_the_way.parent.is_dir, "the run's folder")
    in_the_way.touch()
    assert command.wait() == 0, command.output
    assert "Checkpoint 1 could not be written, so the previous one is kept" in command.output
    assert "Traceback" not in command.output
    states = read_whole_checkpoint(command.run_folder)
    assert states["trainer@learner-CartPole"]["trainer"]["step"] >= 3000
    command.assert_left_nothing()


def test_on_a_full_disk_the_run_goes_on_to_its_end_and_says_what_is_lost(tmp_path, caplog):
    recorded = cartpole(**INLINE, record__edges=["trainer"], behaviors__CartPole__summary_freq=100)
    with files_no_larger_than(8000), pytest.raises(RunFailed, match="last checkpoint could not be written.*too large"):
        run_here(recorded, tmp_path, "run")
    for lost in ("events.out.tfevents.* can't be written", "can't record"):
        assert caplog.text.count(lost) == 1, caplog.text
    (stream,) = (tmp_path / "run" / "streams").glob("*.stream")
    assert list(StreamReader(stream)) is not None, "readable to its last whole message"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_can_not_be_written_is_named_before_anything_starts(tmp_path, resume):
    (tmp_path / "results").mkdir()
    if resume:
        run = tmp_path / "results" / "run"
        run.mkdir()
        (run / "configuration.yaml").mkdir()  # no file can take its place
    else:
        (tmp_path / "results").rmdir()
        (tmp_path / "results").touch()
    with pytest.raises(RunFolderError, match=r"results/run can't be written: .*another --results-dir"):
        run_here(cartpole(**INLINE), tmp_path / "results", "run", resume=resume)


def test_a_limit_too_small_for_shared_memory_is_named_and_the_run_ends(tmp_path):
    with files_no_larger_than(2**20):  # which children inherit
        command = Command(tmp_path, cartpole())
    assert command.wait() == 1, command.output
    assert "ulimit -f" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


def test_an_output_that_can_not_be_written_ends_no_run(tmp_path):
    """Its file lies on a disk that is full."""
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(cartpole(**INLINE, behaviors__CartPole__max_steps=600)))
    line = [sys.executable, str(COMMAND), str(config), "--run-id", "run", "--results-dir", str(tmp_path)]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The output can't be written: No space left on device. Training continues.") == 1
    assert "Traceback" not in done.stderr
    read_whole_checkpoint(tmp_path / "run")
