"""Code of users may change what its whole process shares: a run stays where it is, goes on, is heard and ends in time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from foreign_env import CHANGES
from run_configs import INLINE, cartpole

from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

BESIDE = [Path(__file__).parents[1] / "foreign_env.py"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork and fewer signals")


def check(start, tmp_path, what, hosts):
    plain = cartpole(
        environment__factory="foreign_env:Env",
        environment__num_envs=4,
        behaviors__CartPole__max_steps=2000,
        pipeline__supervision={"grace_s": 6},
        **hosts,
    )
    del plain["environment"]["id"]
    command = start(plain, "--results-dir", "results", beside=BESIDE, environment={"FOREIGN": what})
    status, output = command.wait(), command.output
    assert status == 0, output
    assert not (tmp_path / "elsewhere" / "results").exists()
    assert newest_checkpoint(command.run_folder / "checkpoints").number == 1
    assert not list((command.run_folder / "checkpoints").glob("*.unfinished"))
    last = re.compile(r"\[INFO\] CartPole\. Step: 2000\..*Training\.")
    log = (command.run_folder / "run_logs" / "run.log").read_text(encoding="utf-8")
    assert last.search(output), output
    assert last.search(log), log
    assert "[INFO] CartPole: 2000 steps, policy in results/run/CartPole/CartPole-2000.pt" in output, output
    assert "Logging error" not in output
    command.assert_left_nothing()
    return output


@pytest.mark.lengthy
def test_a_run_withstands_all_changes_of_process_state_together(start, tmp_path):
    output = check(start, tmp_path, "all", INLINE)
    (said,) = re.findall("Your code changed process-wide state that Headrace needs.*: (.*)", output)
    for words in ("the handler of SIGTERM", "loggers below 'headrace'"):
        assert words in said
    assert "ValueError: in the child" in output
    assert "returned from the code that forked it, so Headrace ended it" in output


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [INLINE, {}], ids=["inline", "process"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_run_withstands_each_change_of_process_state(start, tmp_path, what, hosts):
    check(start, tmp_path, what, hosts)
