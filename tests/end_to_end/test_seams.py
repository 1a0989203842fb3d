"""Whole runs across the pipeline's seams: platforms, kinds of hosts, replicas, evaluation."""

from __future__ import annotations

import os
import re

import pytest
from run_configs import INLINE, cartpole, volley
from run_folders import read_whole_checkpoint, tags, weights_digest
from runs import COMMAND, run_here

WITHOUT = """
import os, signal, sys

for module in (os, signal):
    for name in ("memfd_create", "pidfd_open", "pidfd_send_signal", "posix_fallocate", "sched_getaffinity"):
        vars(module).pop(name, None)
ours = (os.path.join({root!r}, part) for part in ("headrace", "config", "queues", "stages", "pipeline"))
ours = tuple(os.path.join(folder, "") for folder in ours)

def look(event, arguments):
    of_linux = event == "open" and str(arguments[0]).startswith(("/proc", "/dev/shm"))
    if of_linux or (event == "ctypes.dlopen" and arguments[0] is None):
        frame = sys._getframe(1)
        while frame is not None and "site-packages" not in (file := frame.f_code.co_filename):
            if file.startswith(ours):
                print(f"used of Linux: {{arguments}} in {{frame.f_code}}", file=sys.stderr, flush=True)
                return
            frame = None if frame.f_globals["__name__"] == "ctypes" and frame.f_code.co_name == "<module>" else frame.f_back

sys.addaudithook(look)
"""
"""A `sitecustomize` that takes from Python what Linux alone has, and tells of files and calls that are its own."""


@pytest.mark.slow
def test_a_run_needs_nothing_specific_to_linux(start, tmp_path):
    """Shared memory in files of the temporary folder, groups in place of the sweeper; two actors and self-play."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(WITHOUT.format(root=str(COMMAND.parents[1])))
    path = os.pathsep.join([str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")])
    environment = {"HEADRACE_PLATFORM": "plain", "PYTHONPATH": path}
    command = start(volley(pipeline__hosts__actors__replicas=2), environment=environment)
    assert command.wait() == 0, command.output
    assert "using files in" in command.output
    assert "used of Linux" not in command.output
    assert {"actor-0", "actor-1"} <= set(re.findall(r"actor-\d", str(tags(command.run_folder, "Pipeline"))))
    states = read_whole_checkpoint(command.run_folder)
    assert states["ghost@main"]["generation"] > 1
    assert states["trainer@learner-Volley"]["trainer"]["step"] >= 6000
    command.assert_left_nothing()


def test_inline_actors_work_with_a_learner_in_a_process(tmp_path):
    plain = cartpole(
        pipeline__hosts__actors={"kind": "inline", "replicas": 2},
        pipeline__hosts__learners__kind="process",
        record__edges=["trainer"],
    )
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["CartPole"].step >= 3000
    assert not result.interrupted
    replay = {**cartpole(**INLINE), "replay": {"streams": [str(tmp_path / "run" / "streams" / "*.stream")]}}
    run_here(replay, tmp_path, "replay")
    assert weights_digest(tmp_path / "replay") == weights_digest(tmp_path / "run")


def test_a_single_evaluation_serves_several_actors_and_ends_with_the_run(tmp_path, caplog):
    caplog.set_level("INFO")
    hosts = {"actors": {"kind": "inline", "replicas": 2}, "learners": {"kind": "inline"}}
    run_here(cartpole(evaluation={"every": 500, "episodes": 4}, pipeline__hosts=hosts), tmp_path, "run")
    assert "Evaluation: " in caplog.text
