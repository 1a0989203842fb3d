"""Restarts of actors, one after the other: main keeps nothing of those that died."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from run_configs import cartpole


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_main_keeps_no_descriptor_of_an_actor_that_was_replaced(start):
    settings = {"env_settings__max_lifetime_restarts": -1, "env_settings__restarts_rate_limit_n": -1}
    command = start(cartpole(behaviors__CartPole__max_steps=10**7, **settings))
    counts = []
    checkpoint = command.until_checkpoint(0).number
    for _ in range(4):
        pid = command.pid_of("actor-0")
        os.kill(pid, signal.SIGKILL)
        command.until(lambda pid=pid: command.hosts().get("actor-0", pid) != pid, "a replacement")
        checkpoint = command.until_checkpoint(checkpoint + 3).number  # by then the replacement steps
        counts.append(len(os.listdir(f"/proc/{command.process.pid}/fd")))
    assert max(counts[1:]) < counts[0] + 10, counts  # an actor has some 40
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
