"""A disk that refuses costs a file or a checkpoint, not the training."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading

import pytest
import yaml
from full_disk import files_no_larger_than
from run_configs import INLINE, cartpole, volley
from run_folders import read_whole_checkpoint
from runs import COMMAND, PATIENCE_S, Command, run_here

from headrace.pipeline.common.errors import RunFailed, RunFolderError
from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.queues.stream_file import StreamReader


def blocking(run_folder, *numbers):
    """Put a file where the folder of each of these checkpoints would be made, once the first checkpoint is complete."""

    def block(written):
        for number in numbers if written.number == 0 else ():
            (run_folder / "checkpoints" / f"{number:06d}.unfinished").touch()

    return RunOptions(on_checkpoint=block)


def test_a_checkpoint_that_can_not_be_written_costs_only_that_checkpoint(tmp_path, caplog):
    plain = volley(**INLINE, behaviors__Volley__max_steps=2900, behaviors__Volley__checkpoint_interval=700)
    result = run_here(plain, tmp_path, "run", blocking(tmp_path / "run", 1))
    assert result.behaviors["Volley"].step >= 2900
    assert result.checkpoint >= 3
    read_whole_checkpoint(result.folder)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "Checkpoint 1 could not be written, so the previous one is kept" in record.message


def test_a_run_whose_last_checkpoint_can_not_be_written_fails_and_names_the_previous_one(tmp_path):
    with pytest.raises(RunFailed, match="last checkpoint could not be written") as failed:
        run_here(cartpole(**INLINE), tmp_path, "run", blocking(tmp_path / "run", *range(1, 10)))
    assert "--run-id run --resume" in str(failed.value)
    checkpoint = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.number == 0
    read_whole_checkpoint(tmp_path / "run")


def test_a_run_whose_final_policy_can_not_be_written_fails_and_can_be_resumed(tmp_path):
    in_the_way = tmp_path / "run" / "CartPole.onnx"
    options = RunOptions(on_checkpoint=lambda written: in_the_way.mkdir(exist_ok=True))
    with pytest.raises(RunFailed, match=r"the final policy could not be written for CartPole") as failed:
        run_here(cartpole(**INLINE), tmp_path, "run", options)
    assert "--run-id run --resume" in str(failed.value)
    in_the_way.rmdir()
    run_here(cartpole(**INLINE), tmp_path, "run", resume=True)
    assert in_the_way.is_file()


def test_on_a_full_disk_the_run_continues_and_names_what_is_lost(tmp_path, caplog):
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


def test_a_run_continues_if_its_output_can_not_be_written(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(cartpole(**INLINE, behaviors__CartPole__max_steps=600)))
    line = [sys.executable, str(COMMAND), str(config), "--run-id", "run", "--results-dir", str(tmp_path)]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The output can't be written: No space left on device. Training continues.") == 1
    assert "Traceback" not in done.stderr
    read_whole_checkpoint(tmp_path / "run")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_file_that_never_answers_costs_the_last_checkpoint_but_holds_the_end_only_for_a_while(tmp_path, caplog):
    pipes = []

    def hang(_):
        """Put named pipes, which nobody reads, in the place of TensorBoard's files."""
        for events in (tmp_path / "run" / "CartPole").glob("events.*"):
            if stat.S_ISREG(events.stat().st_mode):
                events.unlink()
                os.mkfifo(events)
                pipes.append(events)

    plain = cartpole(**INLINE, pipeline__supervision__grace_s=2.0, behaviors__CartPole__checkpoint_interval=100_000)
    with pytest.raises(
        RunFailed, match=f"last checkpoint could not be written: .*: the disk still has not answered for {tmp_path}"
    ):
        run_here(plain, tmp_path, "run", RunOptions(on_summary=hang))
    assert "events.out.tfevents.* can't be written: the disk or storage has not answered for 1 s" in caplog.text
    for pipe in pipes:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # the call that hangs returns
    for thread in threading.enumerate():
        if thread.name == "file call":
            thread.join()
