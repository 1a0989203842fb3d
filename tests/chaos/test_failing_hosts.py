"""A shard of a replay buffer, a follower of a learner or the inference host fails: the run names it and ends, or goes on.

It goes on without a follower that was lost, as without a lost learner: with another learner, from the newest checkpoint.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from run_configs import Plain, cartpole, changed, sac
from runs import Command, assert_no_children, run_here

from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")

BESIDE = Path(__file__).parent / "failing_hosts"
FAULTS = ("raise", "os._exit(0)", "kill -9", "SIGSTOP", "hang in Python")
SHARD, FOLLOWER, INFERENCE = "replay-Pendulum-1", "learner-CartPole-replica-1", "inference"
MOMENTS = {
    SHARD: ("start", "mid-run", "checkpoint", "end"),
    FOLLOWER: ("start", "mid-update", "checkpoint", "end"),
    INFERENCE: ("start", "mid-run", "checkpoint", "end"),
}
SILENCE = {"start": {"warn_s": 3.0, "end_s": 8.0}, "later": {"warn_s": 4.0, "end_s": 20.0}}
"""What starts has five times as long. A shard's end comes 4 s before its learner's, and asking who is stopped takes some."""


def configuration(host: str, moment: str) -> Plain:
    """A run of some seconds."""
    silence = SILENCE["start" if moment == "start" else "later"]
    supervision = {"pipeline__supervision": {"learners": silence, "main": silence, "actors": silence, "grace_s": 16}}
    if host == SHARD:
        hosts = {"replay": {"kind": "process", "replicas": 2}, "actors": {"kind": "inline"}}
        return sac(**supervision, pipeline__hosts=hosts)
    if host == INFERENCE:
        return cartpole(**supervision, pipeline__inference="central", pipeline__hosts__actors__replicas=2)
    return cartpole(**supervision, pipeline__hosts__learners__replicas=2)


def parameters():
    for host, fault in itertools.product(MOMENTS, FAULTS):
        for moment in MOMENTS[host]:
            cell = host, moment, fault
            if fault in ("raise", "hang in Python") and cell[:2] == (FOLLOWER, "checkpoint"):
                continue  # it does nothing then that could raise or hang
            yield pytest.param(*cell, id="|".join(cell))


def test_a_killed_shard_ends_a_run_with_a_complete_checkpoint(tmp_path, monkeypatch):
    """The shards are processes; of followers test_crash.py has one that is killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAULT", f"{SHARD}|mid-run|kill -9")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BESIDE), os.environ.get("PYTHONPATH", "")]))
    changes = {"pipeline__hosts__learners__kind": "inline", "behaviors__Pendulum__max_steps": 10**6}
    with pytest.raises(RunFailed, match=f"{SHARD} was killed by signal 9"):
        run_here(changed(configuration(SHARD, "mid-run"), changes), tmp_path / "results", "run")
    assert (tmp_path / "happened").exists()
    checkpoint = newest_checkpoint(tmp_path / "results" / "run" / "checkpoints")
    assert checkpoint is not None
    checkpoint.check()
    assert_no_children()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("host", "moment", "fault"), [*parameters()])
def test_a_failed_host_is_named_and_the_last_checkpoint_is_complete(host, moment, fault, tmp_path):
    replaced = host == FOLLOWER and fault != "raise" and moment != "end"
    plain = configuration(host, moment)
    behavior = "Pendulum" if host == SHARD else "CartPole"
    if moment != "end":
        plain["behaviors"][behavior]["max_steps"] = 10**6
    path = os.pathsep.join([str(BESIDE), os.environ.get("PYTHONPATH", "")])
    command = Command(tmp_path, plain, environment={"FAULT": f"{host}|{moment}|{fault}", "PYTHONPATH": path})
    try:
        if replaced:
            command.until(lambda: "learner-CartPole continues from" in command.output, "another learner")
            command.until_checkpoint()
            command.interrupt()
        status = command.wait()
        print(command.output)
        assert (tmp_path / "happened").exists()
        assert "Traceback" not in command.output
        command.assert_left_nothing()
        if replaced:
            assert status == 0
            assert host in command.output.partition("learner-CartPole was ended, because ")[2].partition("\n")[0]
        elif moment != "end":
            assert status == 1
            _, found, told = command.output.partition("the run has failed: ")
            assert found
            assert host in told
        else:  # all is learned and saved
            assert status == 0 or host in command.output.partition("the run has failed: ")[2]
        if moment == "start" and not replaced:
            return
        checkpoint = newest_checkpoint(command.run_folder / "checkpoints")
        assert checkpoint is not None
        checkpoint.check()
        steps = checkpoint.steps[behavior]
        if moment == "end":
            assert steps >= plain["behaviors"][behavior]["max_steps"]
            return
        plain["behaviors"][behavior]["max_steps"] = steps + 100
        command = Command(tmp_path, plain, "--resume")
        assert command.wait() == 0, command.output
        assert "starts empty" not in command.output
    finally:
        command.end()
