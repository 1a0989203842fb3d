"""Draws what a league is for: in rock, paper, scissors, self-play runs in circles, but a league's mixture does not.

bin/run-pipeline config/examples/rock-paper-scissors-self-play.yaml
bin/run-pipeline config/examples/rock-paper-scissors-league.yaml
python benchmarks/league_circle.py results/rps-self-play results/rps-league docs/league-circle.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headrace import LoadedPolicy, load_policy
from headrace.pipeline.policies.export import exports_by_step, step_in_name
from headrace.stages.games.rock_paper_scissors import equilibrium, payoffs
from headrace.stages.league.matchmaking import solve

Floats = NDArray[np.float64]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("self_play", "league", "picture"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    steps = [step_in_name(path) for path in exports_by_step(args.self_play / "RockPaperScissors", "RockPaperScissors")]
    alone = np.array([strategy(load_policy(args.self_play, checkpoint=step)) for step in steps])
    mixture = load_policy(args.league, mixture=True)
    count = max(int(path.name[:5]) for path in (args.league / "RockPaperScissors" / "league").glob("*.policy")) + 1
    loaded = [load_policy(args.league, checkpoint=f"member-{number}") for number in range(count)]
    members, made = np.array([strategy(each) for each in loaded]), [each.step for each in loaded]
    mixtures = np.array([mixed(members[: n + 1]) for n in range(count)])
    found = np.average([strategy(each) for each in mixture.members], axis=0, weights=mixture.probabilities)
    print(f"equilibrium {equilibrium().round(3)}, the league's own mixture {found.round(3)}")
    print(f"gain of a best response: self-play's last policy {gain(alone[-1]):.3f}, the mixture {gain(found):.3f}")
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    triangle(panels[0], "Self-play: the newest policy", alone)
    triangle(panels[1], "League: mixture of its members", mixtures, members)
    panels[1].plot(*(found @ CORNERS), "o", color="tab:blue", mfc="none", ms=9)
    panels[2].plot(steps, [gain(each) for each in alone], color="tab:orange", label="self-play")
    panels[2].plot(made, [gain(each) for each in mixtures], color="tab:blue", label="league")
    panels[2].set(xlabel="steps", ylabel="what a best response gains")
    panels[2].legend()
    figure.savefig(args.picture, dpi=90)


def strategy(policy: LoadedPolicy) -> Floats:
    """Return a policy's probabilities of playing rock, paper and scissors."""
    found = policy.distribution(np.ones(1, np.float32)).probabilities[0].astype(np.float64)
    return np.asarray(found / found.sum())


def mixed(members: Floats) -> Floats:
    """Return the mixture of members that replicator dynamics find for the members' exact payoffs."""
    shares = solve(members @ payoffs() @ members.T, "replicator")
    return np.asarray(shares @ members)


def gain(played: Floats) -> float:
    """Return what a best response to a strategy gains per game."""
    return float((payoffs() @ played).max())


def triangle(panel: Any, title: str, path: Floats, members: Floats | None = None) -> None:
    """Draw a sequence of strategies as a path in the triangle of rock, paper and scissors."""
    panel.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.7", lw=1)
    for name, corner, side in zip(("rock", "paper", "scissors"), CORNERS, ("top", "top", "bottom"), strict=True):
        panel.text(*corner, name, ha="center", va=side, color="0.35")
    if members is not None:
        panel.plot(*(members @ CORNERS).T, ".", color="0.6", ms=5)
    panel.plot(*(path @ CORNERS).T, color="tab:orange" if members is None else "tab:blue", lw=1.2, marker=".", ms=4)
    panel.plot(*(equilibrium() @ CORNERS), "*", color="black", ms=10)
    panel.set_title(title, fontsize=10)
    panel.set_aspect("equal")
    panel.axis("off")


if __name__ == "__main__":
    main()
