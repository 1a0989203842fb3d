"""A damaged checkpoint is named, and never mistaken for another one or for none: the older one takes its place."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, cartpole, changed, sac
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.main.fixed_settings import FIXED
from headrace.pipeline.run import RunOptions, run_async
from headrace.pipeline.run_folder.checkpoint import checksum_of, newest_checkpoint

PLAIN = cartpole(behaviors__CartPole__max_steps=2000, behaviors__CartPole__checkpoint_interval=700, **INLINE)
MORE = changed(PLAIN, {"behaviors__CartPole__max_steps": 3000})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that has ended."""
    return run_here(PLAIN, tmp_path_factory.mktemp("trained"), "run").folder


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "results" / "run"))


def checkpoints(run_folder):
    """The folders of its checkpoints, oldest first."""
    return sorted(path for path in (run_folder / "checkpoints").iterdir() if path.is_dir())


def parts(run_folder):
    return [next(folder.glob("trainer*.part")) for folder in checkpoints(run_folder)]


def manifests(run_folder):
    return sorted((run_folder / "checkpoints").rglob("manifest.json"))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_a_bit(run_folder):
    for path in parts(run_folder):
        flip(path)


@pytest.fixture
def command(in_this_process, tmp_path):
    """Calls the command to resume the run; returns what it says."""

    def call(plain, **status):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(plain))
        arguments = (str(tmp_path / "run.yaml"), "--run-id=run", f"--results-dir={tmp_path / 'results'}", "--resume")
        return in_this_process(main, *arguments, **status)

    return call


def test_the_command_names_a_damaged_checkpoint_and_ends_with_status_2(damaged, command):
    flip_a_bit(damaged)
    said = command(PLAIN, status=2)
    (line,) = [line for line in said.splitlines() if not line.startswith("warning")]
    assert line.startswith("run-pipeline: ")
    assert line.count("trainer%40learner-CartPole.part is damaged") == 2


def test_a_run_can_start_again_with_force_over_a_damaged_checkpoint(damaged):
    flip_a_bit(damaged)
    result = run_here(PLAIN, damaged.parent, "run", force=True)
    assert result.checkpoint >= 0


def test_a_run_falls_back_to_the_previous_checkpoint(damaged, command):
    older, newest = checkpoints(damaged)
    step = json.loads((older / "manifest.json").read_text())["steps"]["CartPole"]
    flip(parts(damaged)[-1])
    said = command(MORE)
    assert f"{newest.name}/trainer%40learner-CartPole.part is damaged: its checksum" in said
    assert "Resuming from the previous checkpoint, " in said
    assert f"checkpoints/{older.name} (CartPole at step {step}), instead. The damaged files are kept as" in said
    assert f"Resuming training from step {step}." in said
    assert (newest.parent / f"{newest.name}.damaged" / "trainer%40learner-CartPole.part").is_file()
    states = read_whole_checkpoint(damaged)
    assert states["trainer@learner-CartPole"]["trainer"]["step"] >= 3000
    assert newest_checkpoint(damaged / "checkpoints").number > int(older.name)


def test_a_run_whose_checkpoints_were_removed_is_not_resumed_from_step_0(damaged):
    """From step 0 the run would train over what it has."""
    shutil.rmtree(damaged / "checkpoints")
    before = sorted(damaged.rglob("*"))
    with pytest.raises(RunError, match=r"has trained policies .*holds no checkpoint.*--initialize-from=run"):
        run_here(PLAIN, damaged.parent, "run", resume=True)
    assert sorted(damaged.rglob("*")) == before


def test_a_run_that_was_killed_in_its_first_checkpoint_starts_from_step_0(damaged, caplog):
    older, newest = checkpoints(damaged)
    shutil.rmtree(older)
    (newest / "manifest.json").unlink()
    newest.rename(newest.with_name("000000.unfinished"))
    result = run_here(PLAIN, damaged.parent, "run", resume=True)
    assert "ended before its first checkpoint was complete: starting from step 0" in caplog.text
    assert result.checkpoint >= 1
    read_whole_checkpoint(damaged)


async def test_a_run_with_damaged_checkpoints_can_still_be_played(damaged):
    flip_a_bit(damaged)
    before = sorted(damaged.glob("checkpoints/**/*"))
    settings = {"results_dir": str(damaged.parent), "run_id": "run", "inference": True}
    stop = asyncio.Event()
    options = RunOptions(stop=stop, on_progress=lambda snapshot: stop.set())
    await run_async(RunConfig.from_plain({**PLAIN, "checkpoint_settings": settings}), options)
    assert sorted(damaged.glob("checkpoints/**/*")) == before


def test_a_broken_training_status_is_put_aside(damaged, caplog):
    content = '{"CartPole": 3}'
    status = damaged / "run_logs" / "training_status.json"
    status.write_text(content)
    run_here(PLAIN, damaged.parent, "run", resume=True)
    assert status.with_name("training_status.json.damaged").read_text() == content
    assert json.loads(status.read_text())["CartPole"]
    assert "can't be read as a training status" in caplog.text
    assert f"The file is now {status}.damaged" in caplog.text


def test_a_replay_memory_of_another_checkpoint_is_not_restored(tmp_path, caplog):
    short = {"behaviors__Pendulum__max_steps": 300, "behaviors__Pendulum__checkpoint_interval": 100}
    result = run_here(sac(**short, **INLINE), tmp_path, "run")
    older, newest = checkpoints(result.folder)
    shutil.copy(older / "replay-Pendulum.bin", newest)
    again = run_here(sac(behaviors__Pendulum__max_steps=400, **INLINE), tmp_path, "run", resume=True)
    assert "replay-Pendulum.bin: the file was saved at step" in caplog.text
    assert "so it starts empty" in caplog.text
    assert again.behaviors["Pendulum"].step >= 400


def contents(run_folder):
    """The files of a run and what is in them; but its log, to which each start adds."""
    return {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file() and path.name != "run.log"}


OTHER_TRAINER = changed(
    MORE, {"behaviors__CartPole__trainer_type": "sac", "behaviors__CartPole__hyperparameters": {"buffer_size": 4000}}
)
OTHER_ENVIRONMENT = changed(MORE, {"environment__id": "Acrobot-v1"})


def forget_what_is_fixed(run_folder):
    """Remove the record of fixed settings, so that only the trainer can find the difference."""
    for path in manifests(run_folder):
        content = json.loads(path.read_bytes())
        del content["progress"][FIXED], content["checksum"]
        path.write_text(json.dumps({**content, "checksum": checksum_of(content)}))


@pytest.mark.parametrize(
    ("plain", "forgotten", "said"),
    [
        (OTHER_TRAINER, False, r"trainer_type is sac, but the checkpoint was written with ppo"),
        (OTHER_TRAINER, True, r"can't continue from .*trainer_type, observations, actions or settings"),
        (OTHER_ENVIRONMENT, False, r"can't continue: it was trained with different observations: .*\[4\].*\[6\]"),
    ],
)
def test_a_resume_that_fails_leaves_the_run_as_it_is(damaged, plain, forgotten, said):
    if forgotten:
        forget_what_is_fixed(damaged)
    before = contents(damaged)
    with pytest.raises((RunError, RunFailed), match=said):
        run_here(plain, damaged.parent, "run", resume=True)
    assert contents(damaged) == before
    assert run_here(MORE, damaged.parent, "run", resume=True).behaviors["CartPole"].step >= 3000
