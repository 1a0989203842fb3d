"""Compares the pipeline with its references and peers on one machine: every ratio that docs/performance.md states.

    python benchmarks/compare.py --pairs 5 --peer PEER --rltools RLTOOLS --sbx SBX --before CHECKOUT --write
    python benchmarks/compare.py --only W1 --pairs 3 --quick

W1 is PPO on CartPole-v1, with the same hyperparameters for all contestants: the command with actor and learner in
separate processes, and with both inline; our trainer in a bare loop (`bare_loop.py`); PPO by hand in NumPy
(`reference_numpy_ppo.py`); PPO in eager torch (`reference_torch_ppo.py`); and Stable-Baselines3 (`peer_sb3.py`).
Stable-Baselines3 is also the peer in the other workloads: W2 is PPO on HalfCheetah-v5, W3 is SAC and W4 PPO on
Pendulum-v1, and Pong is PPO from pixels. RLtools (C++, `peer_rltools.py`) and sbx (JAX, `peer_sb3.py --sbx`) also run
W3 and W4. Each peer has a separate Python. Every process has one thread, except with JAX, which uses all cores that it
finds. `start` is the time from the command to the first update, and `main` the time until the built-in game has a
policy that wins 90 % of its games; both are compared with another checkout. `envs` is the cost of a step of single
environments in a plain loop, in our group and in Gymnasium's SyncVectorEnv. `growth` is the cost of more environments,
units, behaviours, actors and snapshots, and of a longer horizon.

In each round, a workload's contestants run one after the other, in an order that changes from round to round. A ratio
is computed within a round, and the median over the rounds is reported: in wall-clock time, which needs a quiet machine,
and in CPU time per step of the busiest process, which other work disturbs less. Above 1, Headrace is faster. Start-up
and the first fifth of the steps are left out. The pipeline's stages are measured in wall-clock time over its whole run,
those of the references in CPU time. A contestant that is not installed or not named is skipped with a message. Memory
is the resident memory of all processes, so shared pages count in each process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import compare_growth
import compare_page
import compare_steps
from compare_machine import description
from compare_runs import ROOT, Measured
from compare_workloads import NEEDS, PEERS, WORKLOADS, Asked, Workload, has

GROWTH, STEPS = "growth", "envs"
ONCE = ("start", "main")
PAGE, PICTURE, GROWTH_PICTURE = (ROOT / "docs" / name for name in ("performance.md", "compare.svg", "cost-growth.svg"))


def rounds(workload: Workload, pairs: int) -> dict[str, list[Measured]]:
    """Return each contestant's measurements, one per round."""
    found: dict[str, list[Measured]] = {name: [] for name in workload.contestants}
    names = list(workload.contestants)
    for number in range(pairs):
        # The order changes so that a drift of the machine favours no contestant.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(workload.contestants[name](number))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def growth(pairs: int, quick: bool) -> dict[str, dict[int, list[Measured]]]:
    """Return the measurements of each round, by size and value."""
    found: dict[str, dict[int, list[Measured]]] = {}
    for name, size in compare_growth.SIZES.items():
        values = (size.values[0], size.values[-1]) if quick else size.values
        found[name] = {value: [] for value in values}
        for number in range(pairs):
            for value in values:
                found[name][value].append(compare_growth.grown(name, value, number, quick))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def wanted(names: Sequence[str], asked: Asked) -> Mapping[str, Workload]:
    """Return the workloads that can run here; print why the others are skipped."""
    found = {}
    for name in names:
        if name == "main" and asked.before is None:
            print(f"{name} is skipped: --before names the checkout to compare with", file=sys.stderr)
        elif name in WORKLOADS and has(sys.executable, NEEDS.get(name)):
            found[name] = WORKLOADS[name](asked)
    return found


def options_of(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Asked]:
    """Parse the command line; report peers that are missing or not named."""
    every = [*WORKLOADS, STEPS, GROWTH]
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="workloads")
    parser.add_argument("--pairs", type=int, default=3, help="rounds in which all contestants run in turn")
    for name, peer in PEERS.items():
        parser.add_argument(f"--{peer.option}", metavar="PYTHON", help=f"has {name}: pip install {peer.packages}")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, for `start` and `main`")
    parser.add_argument("--quick", action="store_true", help="fewer steps and sizes: to see that it works")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md, with pictures next to it")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error("--pairs: there is at least one")
    if options.before is not None and not (options.before / "bin/run-pipeline").exists():
        parser.error(f"--before: {options.before} has no bin/run-pipeline; expected a checkout")
    peers = {}
    for name, peer in PEERS.items():
        python = getattr(options, peer.option)
        if python is None:
            print(f"{name} is skipped: --{peer.option} names a Python that has it", file=sys.stderr)
        elif not has(python, peer.module):
            parser.error(f"--{peer.option}: in a separate environment, pip install {peer.packages}; name its Python")
        else:
            peers[name] = python
    # The command that reproduces this; the paths of peers and of the other checkout don't matter to readers.
    typed = [f"--only {' '.join(options.only)}"] if options.only != every else []
    typed += [f"--pairs {options.pairs}", *(["--quick"] if options.quick else [])]
    named = [*(peer.option for peer in PEERS.values()), "before"]
    typed += [f"--{name} {name.upper()}" for name in named if getattr(options, name)]
    options.typed = " ".join(typed)
    return options, Asked(peers, options.before and options.before.resolve(), options.quick)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested workloads, print the tables, and write them if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options, asked = options_of(parser, arguments)
    lines, results = [], {}

    def tell(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)

    machine = description({PEERS[name].distribution: python for name, python in asked.peers.items()})
    tell(f"`python benchmarks/compare.py {options.typed}`: {machine}", "")
    for name, workload in wanted(options.only, asked).items():
        found = results[name] = rounds(workload, options.pairs)
        tell(*compare_page.table(name, workload, found), "", *compare_page.ratios(workload, found), "")
        tell(*compare_page.roofline(name, found), "")
    if STEPS in options.only:
        tell(f"**{STEPS}**: a step of single environments, µs of CPU.", "")
        tell(*compare_steps.table(compare_steps.measured(options.quick)), "")
    if GROWTH in options.only:
        grown = growth(options.pairs, options.quick)
        tell("**growth**: one size varies at a time; everything else is as in the example.", "")
        for name, by_size in grown.items():
            tell(*compare_growth.table(name, by_size), "")
    if options.write:
        if timed := {name: found for name, found in results.items() if name not in ONCE}:
            compare_page.draw(timed, PICTURE)
            lines += [f"![CPU time per step of each contestant]({PICTURE.name})", ""]
        if GROWTH in options.only:
            compare_growth.draw(grown, GROWTH_PICTURE)
            lines += [f"![how rate and memory grow]({GROWTH_PICTURE.name})", ""]
        compare_page.write(PAGE, lines)


if __name__ == "__main__":
    main()
