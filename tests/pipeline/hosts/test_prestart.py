"""The learner that is started before the configuration is read: where it is guessed, and what becomes of it."""

from __future__ import annotations

import socket
import subprocess

import pytest
import yaml
from run_configs import INLINE, cartpole

from headrace.config import RunConfig
from headrace.pipeline.cli import main
from headrace.pipeline.hosts import child_process, prestart
from headrace.pipeline.hosts.child_process import started_early, take_child
from headrace.pipeline.hosts.last_words import LastWords
from headrace.pipeline.hosts.prestart import PrestartedProcess, guess_learner, prestarted_learner
from headrace.pipeline.hosts.process_cleanup import host_mark
from headrace.process_tree import ProcessTree

PPO = ("learner-CartPole", ["torch", "headrace.pipeline.roles.learner", "headrace.stages.trainer.ppo"])


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def started(monkeypatch):
    """The children started, by name; each only waits."""
    children = {}

    def spawn(name, modules, mark):
        ours, theirs = socket.socketpair()
        with theirs:
            waiting = ProcessTree(["cat"], shows=False, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            lifeline, its_end = socket.socketpair()
            its_end.close()
            children[name] = PrestartedProcess(waiting, mark, lifeline, ours, LastWords())
        return children[name]

    monkeypatch.setattr(prestart, "spawn", spawn)
    monkeypatch.setattr(child_process, "spawn", spawn)
    return children


def test_the_first_behaviour_and_its_trainer_are_found_in_the_text(written):
    assert guess_learner([written(yaml.safe_dump(cartpole(), sort_keys=False)), "--seed", "1"]) == PPO
    assert guess_learner([written("behaviors:\n  CartPole: {}\ntorch_settings: {precision: auto}\n")]) == PPO
    text = "# two\nbehaviors:\n\n  # the first\n  'One-1': # it\n    trainer_type: sac\n  Two:\n"
    assert guess_learner(["--run-id", "x", written(text)]) == (
        "learner-One-1",
        ["torch", "headrace.pipeline.roles.learner", "headrace.stages.trainer.sac"],
    )


@pytest.mark.parametrize(
    "more",
    [["--validate"], ["--serve"], ["--env=Game"], ["-h"], ["other.yaml"], ["--set", "pipeline.deterministic=true"]],
)
def test_a_command_that_may_start_no_learner_is_not_guessed_at(written, more):
    assert guess_learner([written("behaviors:\n  CartPole:\n"), *more]) is None


@pytest.mark.parametrize(
    "text",
    [
        "environment: {kind: gymnasium}\n",
        "behaviors: {CartPole: {}}\n",
        "replay:\n  streams: x\nbehaviors:\n  CartPole:\n",
        "behaviors:\n  CartPole:\npipeline: {hosts: {learners: {kind: inline}}}\n",
    ],
)
def test_a_file_whose_learners_may_be_elsewhere_is_not_guessed_at(written, text):
    assert guess_learner([written(text)]) is None


def test_a_file_that_is_not_there_is_named_by_those_who_read_it(tmp_path, capsys):
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_who_starts_the_host_takes_the_child_that_is_there(written, started):
    with prestarted_learner([written("behaviors:\n  CartPole:\n")]):
        assert [*started] == ["learner-CartPole"]
        with started_early(RunConfig.from_plain(cartpole())):
            assert [*started] == ["learner-CartPole", "actor-0"]
            child = take_child("learner-CartPole")
            assert child.alive
        child.dismiss()


def test_a_wrong_guess_is_ended_as_soon_as_the_configuration_is_known(written, started):
    guess = prestarted_learner([written("behaviors:\n  CartPole:\n")])
    with guess, started_early(RunConfig.from_plain(cartpole(**INLINE))):
        assert started["learner-CartPole"].process.returncode == -9


def test_a_mistake_in_the_file_leaves_no_process(written, started, capsys):
    assert main([written("behaviors:\n  CartPole:\n    trainer_tipe: ppo\n")]) == 2
    assert [*started] == ["learner-CartPole"]
    assert "trainer_tipe" in capsys.readouterr().err
    assert started["learner-CartPole"].process.returncode == -9


@pytest.mark.lengthy
def test_a_child_whose_parent_ends_before_its_start_message_ends_too():
    child = prestart.spawn("nobody", [], host_mark("nobody"))
    child.socket.close()
    assert child.process.wait(20) == 1
    child.dismiss()
