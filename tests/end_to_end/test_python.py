"""`run(config)` from Python: a value comes back or an exception, and nothing of the caller's is changed."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, cartpole, changed, troubled
from run_folders import digest, read_whole_checkpoint
from runs import COMMAND, PATIENCE_S, assert_no_children, run_here

from headrace.config import RunConfig, load_config
from headrace.pipeline.cli import main
from headrace.pipeline.common.errors import RunError, RunFailed, RunFolderError
from headrace.pipeline.run import RunOptions, RunResult, run, run_async

PLAIN = changed(cartpole(), INLINE)

THINGS = """
import gymnasium, queues
from config import NAME
from headrace import Stage
from pipeline import same
from stages.first import MAKE


class Pass(Stage):
    def process(self, batch):
        yield batch


def make():
    return same(getattr(gymnasium, MAKE)(NAME))
"""
BESIDE = {
    "my_things.py": THINGS,
    "config.py": 'NAME = "CartPole-v1"\n',
    "pipeline.py": "def same(x):\n    return x\n",
    "queues.py": "",
    "stages/__init__.py": "",
    "stages/first.py": 'MAKE = "make"\n',
}
"""Modules of the user's own, some with the names of ours."""
SCRIPT = """
import json, logging, os, signal, sys
sys.path.insert(0, {root!r})
from headrace.config import load_config
from headrace.pipeline.run import run
import gymnasium  # which sets a variable for pygame

def surroundings():
    names = ("SIGINT", "SIGTERM", "SIGCHLD", "SIGPIPE", "SIGBREAK")
    watched = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [
        [str(signal.getsignal(number)) for number in watched],
        [str(handler) for handler in logging.getLogger().handlers], logging.getLogger().level,
        dict(os.environ), os.getcwd(), str(sys.excepthook), str(sys.stdout),
    ]

before = surroundings()
result = run(load_config({config!r}))
assert surroundings() == before, (surroundings(), before)
behavior = result.behaviors["CartPole"]
print(json.dumps({{
    "step": behavior.step, "export": str(behavior.export), "checkpoint": result.checkpoint,
    "interrupted": result.interrupted, "folder": str(result.folder), "run_id": result.run_id,
}}))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of a run that has ended."""
    return run_here(PLAIN, tmp_path_factory.mktemp("trained"), "run")


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of its folder."""
    return shutil.copytree(trained.folder, tmp_path / "run")


@pytest.mark.windows_too
def test_a_script_without_a_main_guard_may_run_hosts_in_processes(tmp_path):
    """Modules next to the script can have the same names as Headrace's; test_users_modules.py tests other ways to start."""
    settings = {"results_dir": str(tmp_path / "results"), "run_id": "mine"}
    config = tmp_path / "mine.yaml"
    plain = cartpole(
        environment__factory="my_things:make",
        pipeline__stages=[{"use": "my_things:Pass", "after": "agent_processor"}],
        pipeline__hosts__learners__kind="inline",
    )
    del plain["environment"]["id"]
    config.write_text(yaml.safe_dump({**plain, "checkpoint_settings": settings}))
    beside = tmp_path / "scripts"
    for name, text in BESIDE.items():
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        (beside / name).write_text(text)
    script = beside / "script.py"
    script.write_text(SCRIPT.format(root=str(COMMAND.parent.parent), config=str(config)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # once, and not once more in each host
    said = json.loads(line)
    assert said["step"] >= 3000
    assert Path(said["export"]).is_file()
    assert (said["run_id"], said["interrupted"]) == ("mine", False)
    assert Path(said["folder"]) == tmp_path / "results" / "mine"
    read_whole_checkpoint(tmp_path / "results" / "mine")


def test_a_result_says_what_was_reached(tmp_path):
    snapshots = []
    result = run_here(PLAIN, tmp_path, "run", RunOptions(on_progress=snapshots.append))
    assert isinstance(result, RunResult)
    assert (result.run_id, result.folder, result.interrupted) == ("run", tmp_path / "run", False)
    behavior = result.behaviors["CartPole"]
    state = read_whole_checkpoint(result.folder)["trainer@learner-CartPole"]
    assert (behavior.step, behavior.version) == (state["trainer"]["step"], state["trainer"]["version"])
    assert behavior.recent_return == pytest.approx(sum(state["recent_returns"]) / len(state["recent_returns"]))
    assert behavior.elo is None
    assert behavior.export == tmp_path / "run" / "CartPole" / f"CartPole-{behavior.step}.pt"
    assert result.checkpoint == 2
    assert 0 < result.elapsed_s < PATIENCE_S


def test_a_listed_behaviour_that_the_environment_lacks_is_reported(tmp_path, caplog):
    listed = {**PLAIN, "behaviors": {**PLAIN["behaviors"], "Cartpole": {"max_steps": 100}}}
    environment = {**PLAIN["environment"], "behavior": "CartPole"}
    run_here({**listed, "environment": environment}, tmp_path, "run")
    assert "never seen in the environment: Cartpole (seen: CartPole)" in caplog.text


def test_warnings_about_the_configuration_are_logged_once(tmp_path, caplog):
    odd = changed(
        PLAIN, {"behaviors__CartPole__hyperparameters__buffer_size": 10_240, "behaviors__CartPole__max_steps": 64}
    )
    settings = {"results_dir": str(tmp_path), "run_id": "run"}
    run({**odd, "checkpoint_settings": settings})
    warnings = load_config({**odd, "checkpoint_settings": settings}).warnings
    assert any("nothing is learned" in warning for warning in warnings)
    assert [caplog.messages.count(warning) for warning in warnings] == [1] * len(warnings)


@pytest.mark.parametrize("way", ["command", "data", "configuration"])
def test_warnings_about_the_configuration_are_in_the_log_of_the_run(way, tmp_path):
    odd = changed(
        PLAIN, {"behaviors__CartPole__hyperparameters__buffer_size": 10_240, "behaviors__CartPole__max_steps": 64}
    )
    plain = {**odd, "checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run"}}
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump(plain))
    config = load_config(path if way == "command" else plain)
    if way == "command":
        assert main([str(path)]) == 0
    else:
        run(config if way == "configuration" else plain)
    assert config.warnings
    first = (tmp_path / "run" / "run_logs" / "run.log").read_text().splitlines()[: len(config.warnings)]
    for line, warning in zip(first, config.warnings, strict=True):
        assert line.endswith(f"[WARNING] {warning}")


def test_a_resumed_run_continues_from_its_last_step(trained, finished, tmp_path, caplog):
    more = changed(PLAIN, {"behaviors__CartPole__max_steps": 5000})
    second = run_here(more, tmp_path, "run", resume=True)
    assert "already" not in caplog.text
    assert second.behaviors["CartPole"].step >= 5000
    assert second.behaviors["CartPole"].version > trained.behaviors["CartPole"].version
    assert second.checkpoint > trained.checkpoint
    assert second.elapsed_s > trained.elapsed_s


def test_a_run_is_not_resumed_with_another_network(finished, tmp_path):
    wider = changed(PLAIN, {"behaviors__CartPole__max_steps": 9000, "behaviors__CartPole__network_settings": {}})
    expected = r"CartPole.network_settings.hidden_units is 64, 64, but the checkpoint was written with 32\n"
    with pytest.raises(RunError, match=expected) as failed:
        run_here(wider, tmp_path, "run", resume=True)
    assert "--resume" not in str(failed.value), "which would fail again"


def test_a_finished_run_learns_no_more_when_it_is_resumed(trained, finished, tmp_path, caplog):
    before = digest(read_whole_checkpoint(tmp_path / "run")["trainer@learner-CartPole"]["trainer"])
    second = run_here(PLAIN, tmp_path, "run", resume=True)
    assert second.behaviors["CartPole"].step == trained.behaviors["CartPole"].step
    assert digest(read_whole_checkpoint(tmp_path / "run")["trainer@learner-CartPole"]["trainer"]) == before
    assert (
        caplog.messages.count(
            "CartPole has reached its max_steps (3000), so it no longer learns. To continue, raise "
            "behaviors.CartPole.max_steps."
        )
        == 1
    )


@pytest.mark.windows
@pytest.mark.parametrize("loop", ["SelectorEventLoop", "ProactorEventLoop"])  # of Jupyter's versions
def test_a_run_can_be_awaited_in_each_event_loop_of_a_notebook(tmp_path, monkeypatch, loop):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # without a descriptor, as IDLE's
    settings = {"results_dir": str(tmp_path), "run_id": "run"}
    with asyncio.Runner(loop_factory=getattr(asyncio, loop)) as runner:
        result = runner.run(run_async({**cartpole(), "checkpoint_settings": settings}))
    assert result.behaviors["CartPole"].step >= 3000
    assert_no_children()


async def test_a_run_within_a_running_loop_can_be_cancelled(tmp_path):
    plain = changed(PLAIN, {"behaviors__CartPole__max_steps": 10**7})
    settings = {"results_dir": str(tmp_path), "run_id": "run"}
    config = RunConfig.from_plain({**plain, "checkpoint_settings": settings})
    others = asyncio.all_tasks()
    began = asyncio.Event()
    task = asyncio.create_task(run_async(config, RunOptions(on_progress=lambda snapshot: began.set())))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == others
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_failure_is_an_exception_that_names_the_stage_and_how_to_resume(tmp_path):
    plain = changed(troubled(trouble="raise", after=300), INLINE)
    with pytest.raises(RunFailed) as failed:
        run_here(plain, tmp_path, "run")
    assert failed.value.stage == "actor"
    assert "the motor is on fire" in str(failed.value)
    assert "Traceback" not in str(failed.value)
    assert "Traceback" in failed.value.detail
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_run_that_can_not_start_raises_and_leaves_no_folder(tmp_path):
    plain = changed(PLAIN, {})
    plain["environment"] = None
    plain["env_settings"]["env_path"] = str(tmp_path / "no_such_game")
    with pytest.raises(RunError, match="no executable at .*no_such_game"):
        run_here(plain, tmp_path, "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_the_same_name_is_not_overwritten(finished, tmp_path):
    before = digest(read_whole_checkpoint(finished))
    with pytest.raises(RunFolderError, match="--resume.*--force|--force.*--resume"):
        run_here(PLAIN, tmp_path, "run")
    assert digest(read_whole_checkpoint(finished)) == before
