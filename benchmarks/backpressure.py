"""What the pipeline does when one side is slow: who waits, how full the queues get, what it costs.

    python benchmarks/backpressure.py

First a trainer that sleeps 0.5 s in every update: environments must stand still, queues stay within bounds, memory
stays flat. Then an environment that sleeps 50 ms in every step: the trainer must wait without spinning. Sampled from
outside while the real command runs with default hosts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 20.0
WARM_UP_S = 14.0
_TRAINER = """
import time
from headrace.stages.trainer.ppo import PPOTrainer

class SlowTrainer(PPOTrainer):
    def learn(self):
        time.sleep(0.5)
        return super().learn()
"""
_ENVIRONMENT = """
import time
import gymnasium

class SlowCartPole(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.05)
        return super().step(action)

def slow_cartpole():
    return SlowCartPole(gymnasium.make("CartPole-v1"))
"""


def config(environment: dict[str, object], trainer: str, rows: int) -> dict[str, object]:
    """A CartPole run that would go on for ever."""
    return {
        "environment": environment,
        "behaviors": {
            "CartPole": {
                "trainer_type": trainer,
                "max_steps": 10**9,
                "summary_freq": rows,
                "time_horizon": 32,
                "hyperparameters": {"buffer_size": rows, "batch_size": rows // 8},
                "network_settings": {"hidden_units": 64},
            }
        },
    }


def watch(settings: dict[str, object]) -> tuple[dict[str, list[tuple[float, int]]], EventAccumulator]:
    """CPU share and memory of each host process after warm-up, and the run's pipeline statistics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "slow_trainer.py").write_text(_TRAINER)
        (folder / "slow_environment.py").write_text(_ENVIRONMENT)
        (folder / "run.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, str(ROOT / "bin/run-pipeline"), str(folder / "run.yaml"), "--results-dir", name]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(WARM_UP_S)
            main = psutil.Process(process.pid)
            hosts = {"main": main, **{_role(child): child for child in main.children()}}
            before = {role: _cpu(host) for role, host in hosts.items()}
            samples: dict[str, list[tuple[float, int]]] = {role: [] for role in hosts}
            began = time.monotonic()
            while time.monotonic() - began < SECONDS:
                time.sleep(1.0)
                for role, host in hosts.items():
                    share = (_cpu(host) - before[role]) / (time.monotonic() - began)
                    samples[role].append((share, host.memory_info().rss))
            process.send_signal(2)
            process.wait()
        events = EventAccumulator(str(folder / "ppo" / "Pipeline"))
        events.Reload()
        return samples, events


def _role(host: psutil.Process) -> str:
    return "learner" if any("libtorch" in entry.path for entry in host.memory_maps()) else "actor"


def _cpu(host: psutil.Process) -> float:
    times = host.cpu_times()
    return float(times.user + times.system)


def report(title: str, settings: dict[str, object]) -> None:
    """Watch a run and print what was seen."""
    samples, events = watch(settings)
    print(title)
    for role, seen in sorted(samples.items()):
        share, memory = seen[-1]
        growth = (memory - seen[0][1]) / 2**20
        held = f"memory {memory / 2**20:6.1f} MB, {growth:+.1f} MB in {SECONDS:.0f} s"
        print(f"  {role:8} {share:6.1%} of a core, {held}")
    for tag in sorted(events.Tags()["scalars"]):
        if "trajectories" in tag:
            values = [scalar.value for scalar in events.Scalars(tag)]
            print(f"  {tag:55} last {values[-1]:6.2f}  most {max(values):6.2f}")


def main() -> None:
    """Run both."""
    fast = {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 64}
    slow = {"kind": "gymnasium", "factory": "slow_environment:slow_cartpole", "num_envs": 4, "behavior": "CartPole"}
    report("a trainer that sleeps 0.5 s per update:", config(fast, "slow_trainer:SlowTrainer", 2048))
    report("an environment that sleeps 50 ms per step:", config(slow, "ppo", 128))


if __name__ == "__main__":
    main()
