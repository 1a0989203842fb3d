"""Whole runs on Windows: in a virtual environment, and with hosts, or main, that are killed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import psutil
import pytest
from run_configs import cartpole, changed
from runs import COMMAND

pytestmark = pytest.mark.windows

LONG = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=1000)


@pytest.fixture(scope="session")
def launcher(tmp_path_factory):
    """The `python.exe` of a virtual environment, which starts the interpreter and is not one."""
    if importlib.util.find_spec("venv") is None:  # of `make windows`, whose Python has none
        return r"C:\venv\Scripts\python.exe"
    import venv

    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, system_site_packages=True)
    return str(folder / "Scripts" / "python.exe")


@pytest.mark.timeout(300)
def test_in_a_virtual_environment_a_run_learns_with_its_hosts_in_processes(start, launcher):
    command = start(changed(LONG, {"behaviors__CartPole__max_steps": 3000}), python=launcher)
    hosts = {name: psutil.Process(command.pid_of(name)) for name in ("actor-0", "learner-CartPole")}
    assert {host.parent().exe() for host in hosts.values()} == {sys.executable}, "and not launchers between"
    assert command.wait() == 0, command.output
    assert "results" in command.output
    command.assert_left_nothing()


@pytest.mark.timeout(300)
def test_killed_hosts_are_replaced_repeatedly(start):
    command = start(changed(LONG, {"env_settings__restarts_rate_limit_n": 5}))
    for victim in ("actor-0", "learner-CartPole") * 2:
        number = command.until_checkpoint(1).number
        kill(command, victim)
        command.until_checkpoint(number + 3)
    assert command.output.count("Restarting it") == 4
    assert "learner-CartPole continues from step" in command.output
    assert "Traceback" not in command.output


@pytest.mark.timeout(300)
def test_hosts_end_with_a_main_that_is_killed_and_the_run_resumes(start):
    command = start(LONG)
    command.until_checkpoint(1)
    psutil.Process(command.process.pid).kill()
    command.until_gone()
    again = start(changed(LONG, {"behaviors__CartPole__max_steps": 1}), "--resume")
    assert again.wait() == 0, again.output
    assert "Resuming" in again.output


@pytest.mark.timeout(300)
def test_an_exception_of_a_host_at_its_start_is_shown(start, tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('DLL load failed')\n", encoding="utf-8")
    path = f"{folder};{Path(COMMAND).parents[1]}"
    command = start(LONG, environment={"PYTHONPATH": path})
    assert command.wait() == 1
    assert "learner-CartPole ended with status 1:\n" in command.output
    assert command.output.count("ImportError: DLL load failed") == 1


def kill(command, host):
    pid = command.pid_of(host)
    psutil.Process(pid).kill()
    command.until(lambda: pid not in command.hosts().values(), f"the end of {host}")
