"""Restarts of actors, one after the other: main and the learner keep nothing of those that died."""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
from pathlib import Path

import pytest
from run_configs import TROUBLED_ENV, cartpole, changed, troubled
from runs import shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")

UNLIMITED = {"env_settings__max_lifetime_restarts": -1, "env_settings__restarts_rate_limit_n": -1}
LONG = {"behaviors__CartPole__max_steps": 10**7}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_restarts_leak_nothing(start):
    """Of two actors, each of which exits soon; `pytest -s` prints the figures."""
    plain = changed(troubled(trouble="os._exit", after=150), {**LONG, **UNLIMITED, "env_settings__num_envs": 2})
    command = start(plain, beside=[TROUBLED_ENV])
    learner = command.pid_of("learner-CartPole")
    samples = []
    for restarts in range(10, 501, 5):
        command.until(lambda least=restarts: command.output.count("Restarting it") >= least, "more restarts")
        of_each = [measures(pid) for pid in (command.process.pid, learner)]
        samples.append([restarts, *of_each[0], *of_each[1], len(shared_memory())])
        if restarts % 50 == 0:
            print("restarts {}: main {} descriptors, {} threads, {:.1f} MB; ".format(*samples[-1][:4]), end="")
            print("learner {} descriptors, {} threads, {:.1f} MB; /dev/shm {} files".format(*samples[-1][4:]))
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    early, late = (
        [statistics.median(column) for column in zip(*part, strict=True)] for part in (samples[8:28], samples[-20:])
    )
    print("medians at restarts 50-145:", early[1:], "\nmedians at restarts 405-500:", late[1:])
    _, *main, learner_descriptors, learner_threads, learner_mb, files = (
        b - a for a, b in zip(early, late, strict=True)
    )
    assert abs(main[0]) < 10, "an actor has 40"
    assert main[1] < 1, "threads of main"
    assert (learner_descriptors, learner_threads, files) == (0, 0, 0)
    assert main[2] < 10, "megabytes"
    assert learner_mb < 10


def measures(pid):
    """Descriptors, threads and megabytes of a process (without files that it has mapped)."""
    heap = re.findall(
        r"^Anonymous: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"), re.MULTILINE
    )
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), int(heap[0]) / 1024


@pytest.mark.slow
def test_at_the_limit_of_descriptors_a_replacement_that_can_not_be_started_ends_the_run_by_name(start):
    command = start(cartpole(**LONG, **UNLIMITED))
    command.until_checkpoint(0)
    main = command.process.pid
    resource = pytest.importorskip("resource")
    resource.prlimit(main, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{main}/fd")) + 8, 4096))
    os.kill(command.pid_of("actor-0"), signal.SIGKILL)
    assert command.wait() == 1, command.output
    assert "actor-0 can't be started: the limit of" in command.output
    assert "open files has been reached" in command.output
    assert "did not end within" not in command.output, "the learner would wait for the dead actor's replacement"
    assert "Traceback" not in command.output
    command.assert_left_nothing()


def test_a_run_that_needs_more_descriptors_than_the_system_allows_is_refused(start):
    command = start(cartpole(**LONG, **UNLIMITED, env_settings__num_envs=2), open_files=40)
    assert command.wait() == 2, command.output
    assert "open files in main, but the system allows 40: raise the hard limit" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
