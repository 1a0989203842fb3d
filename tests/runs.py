"""Whole runs for end-to-end tests: their configurations, the real command in processes, and what they leave on disk."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from config import RunConfig
from pipeline.checkpoint import MANIFEST, Checkpoint, newest
from pipeline.run import RunOptions, RunResult, run

TROUBLED_ENV = Path(__file__).parent / "end_to_end" / "troubled_env.py"
TOLD_ENV = TROUBLED_ENV.with_name("told_env.py")
TEAM_ENV = TROUBLED_ENV.with_name("team_env.py")
COMMAND = Path(__file__).parents[1] / "bin" / "run-pipeline"
MARK = "HEADRACE_TEST_RUN"
PATIENCE_S = 90.0
"""For things that take a second or two; a slow machine is no failure."""

Plain = dict[str, Any]


# Configurations. -----------------------------------------------------------------------------------------------------


def cartpole(**changes: Any) -> Plain:
    """A tiny run on CartPole: 16 environments, 500 rows per update. Keys of `changes` are paths with `__` for a dot."""
    plain: Plain = {
        "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 16},
        "env_settings": {"seed": 3},
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "max_steps": 3000,
                "time_horizon": 32,
                "summary_freq": 1000,
                "checkpoint_interval": 1000,
                "hyperparameters": {"buffer_size": 500, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 32, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


def volley(**changes: Any) -> Plain:
    """A tiny self-play run on the built-in game, in which teams, opponents and snapshots change many times.

    The game is made by its class: of `kind: builtin` there would be a film at the end, which takes a second.
    """
    game = "stages.environment.volley.group:VolleyGroup"
    plain: Plain = {
        "environment": {"kind": "gymnasium", "factory": game, "num_envs": 16, "options": {"points_to_win": 1}},
        "env_settings": {"seed": 5},
        "behaviors": {
            "Volley": {
                "trainer_type": "ppo",
                "max_steps": 6000,
                "time_horizon": 32,
                "summary_freq": 2000,
                "checkpoint_interval": 2000,
                "hyperparameters": {"buffer_size": 500, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 32, "num_layers": 1},
                "self_play": {"save_steps": 900, "team_change": 1700, "swap_steps": 600, "window": 4},
            }
        },
    }
    return changed(plain, changes)


def sac(**changes: Any) -> Plain:
    """A tiny run of SAC on Pendulum, whose checkpoints hold the replay buffer."""
    plain: Plain = {
        "environment": {"kind": "gymnasium", "id": "Pendulum-v1", "num_envs": 2},
        "env_settings": {"seed": 7},
        "behaviors": {
            "Pendulum": {
                "trainer_type": "sac",
                "max_steps": 600,
                "summary_freq": 200,
                "checkpoint_interval": 200,
                "hyperparameters": {
                    "batch_size": 16,
                    "buffer_size": 400,
                    "buffer_init_steps": 40,
                    "steps_per_update": 2,
                    "save_replay_buffer": True,
                },
                "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
                "reward_signals": {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8}}},
            }
        },
    }
    return changed(plain, changes)


def remembering(**changes: Any) -> Plain:
    """A tiny run of PPO with a memory and curiosity on CartPole."""
    return cartpole(
        **{
            "environment__num_envs": 4,
            "behaviors__CartPole__max_steps": 1200,
            "behaviors__CartPole__summary_freq": 400,
            "behaviors__CartPole__checkpoint_interval": 400,
            "behaviors__CartPole__hyperparameters__buffer_size": 120,
            "behaviors__CartPole__hyperparameters__batch_size": 40,
            "behaviors__CartPole__network_settings__memory": {"memory_size": 8, "sequence_length": 8},
            "behaviors__CartPole__reward_signals": {
                "extrinsic": {},
                "curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8}},
            },
            **changes,
        }
    )


def cooperating(**changes: Any) -> Plain:
    """A tiny run of POCA on `end_to_end/team_env.py`, where members leave early, with a memory."""
    plain: Plain = {
        "environment": {
            "kind": "pettingzoo",
            "factory": "team_env:Teams",
            "num_envs": 4,
            "behaviors": {"*": {"behavior": "Team", "group": True}},
        },
        "env_settings": {"seed": 13},
        "behaviors": {
            "Team": {
                "trainer_type": "poca",
                "max_steps": 1200,
                "time_horizon": 8,
                "summary_freq": 400,
                "checkpoint_interval": 400,
                "hyperparameters": {"buffer_size": 120, "batch_size": 40, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {
                    "hidden_units": 8,
                    "num_layers": 1,
                    "normalize": True,
                    "memory": {"memory_size": 8, "sequence_length": 4},
                },
            }
        },
    }
    return changed(plain, changes)


def team_play(**changes: Any) -> Plain:
    """A tiny run of POCA with self-play on `end_to_end/team_env.py`: two against two."""
    return cooperating(
        **{
            "environment__options": {"sides": 2},
            "environment__behaviors": {
                "red_*": {"behavior": "Team", "team": 0, "group": True},
                "blue_*": {"behavior": "Team", "team": 1, "group": True},
            },
            "behaviors__Team__network_settings__memory": None,
            "behaviors__Team__self_play": {"save_steps": 200, "team_change": 400, "swap_steps": 100, "window": 4},
            **changes,
        }
    )


def copying(**changes: Any) -> Plain:
    """A tiny run of `bc` from demonstrations, with a memory: no environment, and in small minibatches, to last a while."""
    copier = {
        "trainer_type": "bc",
        "max_steps": 12_000,
        "summary_freq": 2000,
        "checkpoint_interval": 700,
        "hyperparameters": {"demo_path": EXPERT, "batch_size": 16, "buffer_size": 200, "num_epoch": 4},
        "network_settings": {
            "hidden_units": 16,
            "num_layers": 1,
            "normalize": True,
            "memory": {"memory_size": 8, "sequence_length": 8},
        },
    }
    return changed({"env_settings": {"seed": 17}, "behaviors": {"CartPole": copier}}, changes)


def adversarial(**changes: Any) -> Plain:
    """A tiny run of PPO with GAIL, curiosity and cloning, from demonstrations."""
    return cartpole(
        behaviors__CartPole__max_steps=1500,
        behaviors__CartPole__behavioral_cloning={"demo_path": EXPERT, "samples_per_update": 200, "num_epoch": 1},
        behaviors__CartPole__reward_signals={
            "extrinsic": {},
            "curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8}},
            "gail": {"strength": 0.1, "demo_path": EXPERT, "network_settings": {"hidden_units": 8}},
        },
        **changes,
    )


def schooled(**changes: Any) -> Plain:
    """A tiny run of PPO on CartPole with a student that imitates it as it learns."""
    plain = cartpole(environment__behavior="CartPole")
    plain["behaviors"]["Student"] = changed(IMITATOR, {"hyperparameters__teacher": "CartPole", "max_steps": 2500})
    return changed(plain, changes)


def taught(**changes: Any) -> Plain:
    """A tiny run on `end_to_end/told_env.py` through three lessons, whose episodes return -1.5, 0 and 0.75 by guessing."""
    criteria = {"behavior": "Guess", "min_lesson_length": 24}
    uniform = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 5, "max_value": 6}}
    plain: Plain = {
        "environment": {
            "kind": "gymnasium",
            "factory": "told_env:ToldEnv",
            "num_envs": 8,
            "options": {"base": -2.0},
        },
        "env_settings": {"seed": 11},
        "environment_parameters": {
            "worth": {
                "curriculum": [
                    {"name": "Low", "value": 1, "completion_criteria": {**criteria, "threshold": -1.9}},
                    {"name": "High", "value": 4, "completion_criteria": {**criteria, "threshold": -0.8}},
                    {"name": "Any", "value": uniform},
                ]
            }
        },
        "behaviors": {
            "Guess": {
                "trainer_type": "ppo",
                "max_steps": 3000,
                "time_horizon": 16,
                "summary_freq": 500,
                "checkpoint_interval": 500,
                "hyperparameters": {"buffer_size": 200, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 16, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


def troubled(**options: Any) -> Plain:
    """A tiny run on `end_to_end/troubled_env.py`, which has to lie beside the YAML; see there for the options."""
    plain = cartpole(environment__factory="troubled_env:TroubledEnv", environment__options=options)
    plain["environment"] |= {"num_envs": 4}
    del plain["environment"]["id"]
    return plain


def changed(plain: Plain, changes: Mapping[str, Any]) -> Plain:
    """The configuration with these keys set; maps on the way are made."""
    plain = copy.deepcopy(plain)
    for path, value in changes.items():
        *way, last = path.split("__")
        inner = plain
        for key in way:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return plain


IMITATOR: Plain = {
    "trainer_type": "bc",
    "max_steps": 6000,
    "summary_freq": 2000,
    "hyperparameters": {"batch_size": 50, "buffer_size": 200, "num_epoch": 2},
    "network_settings": {"hidden_units": 32, "num_layers": 1},
}
"""A behaviour that learns CartPole by imitation."""
EXPERT = "expert.stream"
"""Stands for what `record_expert` records, in configurations that are written before."""
INLINE: Plain = {
    "pipeline__hosts__actors__kind": "inline",
    "pipeline__hosts__learners__kind": "inline",
}
"""Everything in one process: the quick way where processes are not the point."""


# In this process. ----------------------------------------------------------------------------------------------------


def run_here(plain: Plain, results: Path, run_id: str, options: RunOptions | None = None, **settings: Any) -> RunResult:
    """Run a configuration in this process; `settings` go to `checkpoint_settings`."""
    whole = {**plain, "checkpoint_settings": {"results_dir": str(results), "run_id": run_id, **settings}}
    return run(RunConfig.from_plain(whole, TROUBLED_ENV), options)


def record_expert(folder: Path) -> str:
    """Record some 800 steps of CartPole; the stream that they are in."""
    expert = cartpole(behaviors__CartPole__max_steps=800, record__edges=["trainer"], **INLINE)
    run_here(expert, folder, "expert")
    return streams(folder / "expert")[0]


def with_expert(plain: Plain, stream: str) -> Plain:
    """The configuration with this recording wherever it asks for the expert."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return stream if value == EXPERT else value

    return dict(filled(plain))


# As the command, in processes. ---------------------------------------------------------------------------------------


class Command:
    """`bin/run-pipeline` in a process of its own, with all that it starts.

    Everything that it starts inherits a mark in its environment, by which its processes are found on Linux even
    when their parent is gone.

    Args:
        folder: where the configuration is written and results go.
        plain: the configuration.
        arguments: of the command.
        run_id: of the run.
        beside: files to lie beside the configuration.
        environment: further environment variables.
    """

    def __init__(
        self,
        folder: Path,
        plain: Plain,
        *arguments: str,
        run_id: str = "run",
        beside: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.results = folder / "results"
        self.run_folder = self.results / run_id
        for path in beside:
            shutil.copy(path, folder)
        config = folder / f"{run_id}.yaml"
        config.write_text(yaml.safe_dump(plain))
        self._mark = uuid.uuid4().hex
        self._output = folder / f"{run_id}-{self._mark[:6]}.log"
        line = [sys.executable, str(COMMAND), str(config), "--run-id", run_id, "--results-dir", str(self.results)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*line, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(self.temporary), MARK: self._mark, **(environment or {})},
            )

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._output.read_text(errors="replace")

    def wait(self) -> int:
        """Wait for the end of the command itself; its exit status."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"the command did not end within {PATIENCE_S:.0f} s; it said:\n{self.output}")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send main a signal."""
        self.process.send_signal(number)

    def pid_of(self, host: str) -> int:
        """The process id of a host; waits until it is there."""
        found: dict[str, int] = {}

        def there() -> bool:
            found.update(self.hosts())
            return host in found

        self.until(there, f"the process of {host}")
        return found[host]

    def hosts(self) -> dict[str, int]:
        """The host processes that are running: process ids by host name."""
        lines = {pid: _read(f"/proc/{pid}/cmdline").split(b"\0") for pid in self.processes()}
        return {
            words[words.index(b"pipeline.hosts.child") + 1].decode(): pid
            for pid, words in lines.items()
            if b"pipeline.hosts.child" in words
        }

    def processes(self) -> list[int]:
        """All that is running of this run, main included."""
        if not Path("/proc/self/environ").exists():
            pytest.skip("processes are found by /proc, which this platform does not have")
        mark = f"{MARK}={self._mark}".encode()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if mark in _read(f"/proc/{pid}/environ").split(b"\0")]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that another process does."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None and not condition():
                pytest.fail(f"the command ended with {self.process.returncode} before {what}; it said:\n{self.output}")
            if time.monotonic() > deadline:
                pytest.fail(f"no {what} within {PATIENCE_S:.0f} s; the command said:\n{self.output}")
            time.sleep(0.01)  # there is no event to wait for: what is watched is another process's work on disk

    def until_checkpoint(self, number: int = 0) -> Checkpoint:
        """Wait until this checkpoint (or a later one) is whole."""
        checkpoints = self.run_folder / "checkpoints"
        self.until(
            lambda: (found := newest(checkpoints)) is not None and found.number >= number, f"checkpoint {number}"
        )
        checkpoint = newest(checkpoints)
        assert checkpoint is not None
        return checkpoint

    def until_gone(self) -> None:
        """Wait until nothing of this run is running any more: no process may outlive main for long."""
        deadline = time.monotonic() + 15.0
        while self.processes():
            if time.monotonic() > deadline:
                left = {pid: _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ") for pid in self.processes()}
                self.end()
                pytest.fail(f"processes stayed behind: {left}; the command said:\n{self.output}")
            time.sleep(0.02)

    def end(self) -> None:
        """Kill whatever is left of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def assert_left_nothing(self) -> None:
        """No process, no memory, no temporary file stays behind (in the folders that this run had for itself)."""
        self.until_gone()
        assert list(self.temporary.iterdir()) == []
        assert not [p for p in shared_memory() if "headrace" in p]
        assert not (self.run_folder / ".lock").exists() or self.process.returncode < 0


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has just ended, or is somebody else's
        return b""


def shared_memory() -> list[str]:
    """Names of what lies in `/dev/shm`."""
    folder = Path("/dev/shm")
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []


# What a run leaves on disk. ------------------------------------------------------------------------------------------


def read_whole_checkpoint(run_folder: Path) -> dict[str, Any]:
    """The states in the newest checkpoint, by part; checks that there is one and that it is whole."""
    checkpoint = newest(run_folder / "checkpoints")
    assert checkpoint is not None, f"no checkpoint in {run_folder}"
    return {name: checkpoint.read(name) for name in checkpoint.parts}


def digest(state: Any) -> str:
    """A checksum of every number in a state."""
    made = hashlib.sha256()
    _feed(state, made.update)
    return made.hexdigest()


def trainer_digest(run_folder: Path, behavior: str = "CartPole") -> str:
    """A checksum of a trainer's whole state: weights, optimizer, counters, randomness, buffer."""
    return digest(read_whole_checkpoint(run_folder)[f"trainer@learner-{behavior}"]["trainer"])


def weights_digest(run_folder: Path, behavior: str = "CartPole") -> str:
    """A checksum of the weights of the policy that a trainer has published last."""
    return digest(read_whole_checkpoint(run_folder)[f"trainer@learner-{behavior}"]["policy"]["weights"])


def manifest(run_folder: Path) -> Path:
    """The file that makes a checkpoint real."""
    return run_folder / "checkpoints" / MANIFEST


def streams(run_folder: Path) -> Sequence[str]:
    """The recordings of a run."""
    return sorted(str(path) for path in (run_folder / "streams").glob("*.stream"))


def _feed(value: Any, take: Callable[[bytes], None]) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            take(str(key).encode())
            _feed(value[key], take)
    elif isinstance(value, list | tuple):
        for inner in value:
            _feed(inner, take)
    elif isinstance(value, np.ndarray):
        take(f"{value.dtype}{value.shape}".encode())
        take(value.tobytes())
    else:
        take(repr(value).encode())
