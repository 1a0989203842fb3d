"""Code that exits, or cancels its own task, with whatever status: a failure that is named, never a hang or a success.

test_crash.py has an actor whose process exits.
"""

from __future__ import annotations

import pytest
from run_configs import INLINE, cartpole, changed, troubled
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.reporting.console import ProgressSnapshot
from headrace.pipeline.run import RunOptions

NAMED = {
    "sys.exit": "SystemExit: 0",
    "cancel": "CancelledError",
}


@pytest.mark.parametrize("trouble", NAMED)
def test_an_environment_that_exits_ends_the_run_with_a_checkpoint(tmp_path, trouble):
    """tests/chaos tests this in processes."""
    with pytest.raises(RunFailed, match=rf"the environment's step\(\) requested an exit: {NAMED[trouble]}"):
        run_here(changed(troubled(trouble=trouble, after=100), INLINE), tmp_path, "run")
    read_whole_checkpoint(tmp_path / "run")


def test_a_callback_that_exits_ends_the_run_with_a_checkpoint(tmp_path):
    def leave(snapshot: ProgressSnapshot) -> None:
        if any(behavior.updates for behavior in snapshot.behaviors):
            raise SystemExit

    plain = changed(cartpole(behaviors__CartPole__max_steps=10**7), INLINE)
    with pytest.raises(RunFailed, match=r"SystemExit \(at .*test_unasked_exits.py:\d+, in leave\)"):
        run_here(plain, tmp_path, "run", RunOptions(on_progress=leave))
    read_whole_checkpoint(tmp_path / "run")


@pytest.mark.parametrize("when", ["making", "write"])
def test_a_statistics_writer_that_exits_is_treated_as_one_that_raises(when, tmp_path, caplog):
    writers = [{"use": "misbehaving_stages:LeavingWriter", "with": {"when": when}}]
    plain = changed(cartpole(pipeline__statistics_writers=writers), INLINE)
    if when == "making":
        with pytest.raises(RunError, match=r"creating misbehaving_stages:LeavingWriter raised SystemExit: 0"):
            run_here(plain, tmp_path, "run")
        return
    assert run_here(plain, tmp_path, "run").behaviors["CartPole"].step >= 3000
    assert "LeavingWriter raised in write: SystemExit: 0" in caplog.text
