"""Where policies should decide: steps per second by the size of the network, by each actor and by one host for all.

    python benchmarks/central_inference.py
    python benchmarks/central_inference.py --actors 8 --num-envs 2 --networks 2x512 3x1024 --pairs 3

A policy of each size is learned for one update, and then played (`--inference`), so that deciding is all that there is
to do. Both ways are run in turn. `main` and `host` are shares of a core: requests pass through main.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from headrace.config import RunConfig
from headrace.pipeline.common.threads import use_one_thread
from headrace.pipeline.reporting.progress import ProgressSnapshot
from headrace.pipeline.run import RunOptions, run

BEHAVIOR = "CartPole"
WAYS = ("actor", "central")
LARGEST_POLICY = 64 * 2**20
"""Bytes of 3×2048 and its kin; a slab of shared memory has to hold one."""


@dataclass
class Window:
    """The steps of a run within a time, and the CPU that some of its processes took."""

    seconds: float
    skipped: float
    stop: asyncio.Event
    began: tuple[float, int, float, float] | None = None
    result: tuple[float, float, float] | None = None
    """Steps per second; shares of a core of main and of the host that decides for all."""

    def look(self, snapshot: ProgressSnapshot) -> None:
        """Begin once the actors step, and end after the time."""
        step = sum(behavior.steps for behavior in snapshot.behaviors)
        if not step:
            return
        if self.began is None:
            self.began = (snapshot.elapsed + self.skipped, -1, 0.0, 0.0)
        at, first, *used = self.began
        if first < 0:
            if snapshot.elapsed >= at:
                self.began = (snapshot.elapsed, step, *cpu_seconds())
        elif snapshot.elapsed - at >= self.seconds and self.result is None:
            took = snapshot.elapsed - at
            main, host = (after - before for after, before in zip(cpu_seconds(), used, strict=True))
            self.result = ((step - first) / took, main / took, host / took)
            self.stop.set()


def cpu_seconds() -> tuple[float, float]:
    """CPU time of this process, and of its child that decides for all actors."""
    host = 0.0
    for child in psutil.Process().children():
        if child.cmdline()[-1:] == ["inference"]:
            times = child.cpu_times()
            host = times.user + times.system
    own = os.times()
    return own.user + own.system, host


def configuration(network: str, way: str, asked: argparse.Namespace, results: str) -> dict[str, Any]:
    """Play, or learn for one update."""
    layers, units = map(int, network.split("x"))
    return {
        "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": asked.num_envs},
        "behaviors": {
            BEHAVIOR: {
                "trainer_type": "ppo",
                "max_steps": 64,
                "time_horizon": 64,
                "hyperparameters": {"buffer_size": 64, "batch_size": 64, "num_epoch": 1},
                "network_settings": {"num_layers": layers, "hidden_units": units},
            }
        },
        "pipeline": {
            "inference": way,
            "hosts": {"actors": {"replicas": asked.actors}},
            "queues": {"slab_bytes": LARGEST_POLICY},
        },
        "torch_settings": {"device": "cpu"},
        "checkpoint_settings": {"results_dir": results, "run_id": network},
    }


def played(network: str, way: str, asked: argparse.Namespace, results: str) -> tuple[float, float, float]:
    """Play for some seconds; steps per second, and the shares of a core of main and of the host."""
    plain = configuration(network, way, asked, results)
    plain["checkpoint_settings"] |= {"inference": True, "resume": True}
    window = Window(asked.seconds, asked.skipped, asyncio.Event())
    run(RunConfig.from_plain(plain), RunOptions(stop=window.stop, on_progress=window.look))
    assert window.result is not None, "it ended too early"
    return window.result


def main() -> None:
    """Print each pair, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["2x64", "2x256", "2x512", "3x1024", "3x2048"])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=4, help="of each actor")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--skipped", type=float, default=1.0, help="seconds after the first step that do not count")
    asked = parser.parse_args()
    use_one_thread(os.environ)
    print(f"{asked.actors} actors with {asked.num_envs} environments each")
    with tempfile.TemporaryDirectory() as results:
        for network in asked.networks:
            run(RunConfig.from_plain(configuration(network, "actor", asked, results)))
            ratios, rates = [], {way: [] for way in WAYS}  # type: tuple[list[float], dict[str, list[float]]]
            for pair in range(asked.pairs):
                found = {}
                for way in WAYS if pair % 2 else WAYS[::-1]:  # a drift of the machine favours nobody
                    found[way] = played(network, way, asked, results)
                    rates[way].append(found[way][0])
                ratios.append(found["central"][0] / found["actor"][0])
                _, main_share, host_share = found["central"]
                print(
                    f"  {network}: actor {found['actor'][0]:,.0f} steps/s, central {found['central'][0]:,.0f}: "
                    f"{ratios[-1]:.2f}; main {main_share:.0%}, host {host_share:.0%}",
                    flush=True,
                )
            print(f"{network}: {median(rates['actor']):,.0f} and {median(rates['central']):,.0f}: {median(ratios):.2f}")


if __name__ == "__main__":
    main()
