"""Whole runs across the pipeline's seams: platforms, kinds of hosts, replicas, evaluation."""

from __future__ import annotations

import os
import re

import pytest
from run_configs import INLINE, cartpole, volley
from run_folders import read_whole_checkpoint, tags, weights_digest
from runs import COMMAND, run_here

from headrace.pipeline.policies.export import read_export

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
def test_nothing_depends_on_what_linux_alone_has(start, tmp_path):
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


@pytest.mark.parametrize(
    ("actors", "learners", "replicas"),
    [
        ("inline", "process", 2),
        pytest.param("process", "inline", 1, marks=pytest.mark.slow),  # scripts of test_python.py run so
        ("inline", "inline", 2),
    ],
)
def test_hosts_of_different_kinds_work_together(tmp_path, actors, learners, replicas):
    plain = cartpole(
        pipeline__hosts__actors={"kind": actors, "replicas": replicas},
        pipeline__hosts__learners__kind=learners,
        record__edges=["trainer"],
    )
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["CartPole"].step >= 3000
    assert not result.interrupted
    replay = {**cartpole(**INLINE), "replay": {"streams": [str(tmp_path / "run" / "streams" / "*.stream")]}}
    run_here(replay, tmp_path, "replay")
    assert weights_digest(tmp_path / "replay") == weights_digest(tmp_path / "run")


def test_the_best_policy_of_the_evaluations_is_kept(tmp_path, caplog):
    caplog.set_level("INFO")
    plain = cartpole(
        pipeline__deterministic=True,
        evaluation={"every": 500, "episodes": 8},
        behaviors__CartPole__max_steps=6000,
        **INLINE,
    )
    result = run_here(plain, tmp_path, "run")
    found = re.findall(r"Step: (\d+)\. Evaluation: ([\d.]+) ± [\d.]+ over 8 episodes(, the best so far)?", caplog.text)
    assert len(found) >= 2  # how many policies a busy evaluation misses is a matter of time
    steps, means = [int(step) for step, _, _ in found], [float(mean) for _, mean, _ in found]
    for i, (_, _, best) in enumerate(found):
        assert bool(best) == all(means[i] > mean for mean in means[:i])
    best = read_export(result.folder / "CartPole" / "CartPole-best.pt")
    assert best.update.step == steps[means.index(max(means))]
    assert best.design.spec.name == "CartPole"


@pytest.mark.parametrize("kind", ["inline", pytest.param("process", marks=pytest.mark.slow)])
def test_one_evaluation_serves_several_actors_and_ends_with_the_run(tmp_path, caplog, kind):
    caplog.set_level("INFO")
    hosts = {"actors": {"kind": kind, "replicas": 2}, "learners": {"kind": kind}}
    run_here(cartpole(evaluation={"every": 500, "episodes": 4}, pipeline__hosts=hosts), tmp_path, "run")
    assert "Evaluation: " in caplog.text


@pytest.mark.slow
def test_evaluation_has_a_process_of_its_own_where_actors_have(start):
    command = start(cartpole(evaluation={"every": 500, "episodes": 4}))
    command.pid_of("evaluation")
    assert command.wait() == 0, command.output
    assert "over 4 episodes, the best so far" in command.output
    assert (command.run_folder / "CartPole" / "CartPole-best.pt").exists()
    command.assert_left_nothing()
