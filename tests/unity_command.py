"""Whole runs on the stand-in Unity, of the command or in this process: their configuration, and what tests ask of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_configs import changed
from run_folders import read_whole_checkpoint
from runs import PATIENCE_S
from unity_runs import BUILD, free_port, is_free

from headrace.pipeline.run_folder.checkpoint import newest_checkpoint


def unity(tmp_path, *arguments, num_envs=2, **changes):
    """A tiny run on the stand-in Unity: three agents of one behaviour in each."""
    plain = {
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": ["--agents", "3", "--report", str(tmp_path / "reports"), *map(str, arguments)],
            "num_envs": num_envs,
            "base_port": free_port(4),
            "timeout_wait": 30,
            "seed": 5,
        },
        "behaviors": {
            "Simple": {
                "trainer_type": "ppo",
                "max_steps": 1000,
                "time_horizon": 16,
                "summary_freq": 500,
                "checkpoint_interval": 400,
                "hyperparameters": {"buffer_size": 200, "batch_size": 50, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 16, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


LONG = {"behaviors__Simple__max_steps": 10**7}


def restarts(output):
    return output.count("Restarting Unity worker")


def player_of(command, worker):
    """The process id of a stand-in; waits until it is there."""
    log = f"Player-{worker}.log".encode()
    found = []

    def there():
        for pid in command.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if log in line and b"unity_client" in line and pid not in found:
                found.append(pid)
        return bool(found)

    command.until(there, f"Unity worker {worker}")
    return found[-1]


def assert_saved(run_folder, at_least=1):
    """What was learned is in a whole checkpoint."""
    states = read_whole_checkpoint(run_folder)
    assert states.keys() == {"trainer@learner-Simple"}
    assert newest_checkpoint(run_folder / "checkpoints").steps["Simple"] >= at_least


class Editor:
    """The stand-in as the Unity Editor: somebody else starts it, and it calls port 5004."""

    def __init__(self, *arguments):
        line = [sys.executable, str(BUILD.parent), "--mlagents-port", "5004", *map(str, arguments)]
        self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL)

    def wait(self):
        return self._process.wait(PATIENCE_S)

    def end(self):
        self._process.kill()
        self._process.wait()


def in_editor(tmp_path, **changes):
    """As `unity`, in the Editor."""
    plain = unity(tmp_path, num_envs=1, **changes)
    plain["env_settings"] = {"timeout_wait": 30, "seed": 5}
    return plain


NEEDS_PORT_5004 = pytest.mark.skipif(not is_free(5004), reason="somebody listens on the Editor's port")
