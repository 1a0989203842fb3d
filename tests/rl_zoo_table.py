"""The table of docs/stable-baselines3.md: what comes of each entry of rl-baselines3-zoo's files for PPO and SAC.

python tests/rl_zoo_table.py FOLDER      FOLDER: the zoo's `hyperparams`, with ppo.yml and sac.yml
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.config.load import convert
from headrace.config.yaml_reader import read_file

ALGORITHMS = ("ppo", "sac")
ANY = {"default": "Own-v0", "atari": "ALE/Pong-v5"}
"""Environments that the entries for several stand for."""


def entries(file: Path) -> list[str]:
    """Return the names of a file's entries."""
    return list(read_file(file).data)


def kept_out(file: Path, name: str) -> tuple[str, ...]:
    """Convert an entry; return the keys that have no place."""
    left_out = convert(file, env_id=ANY.get(name, name)).left_out
    return tuple(each.partition(":")[0].rpartition(".")[2] for each in left_out)


def table(folder: Path) -> str:
    """Return the table: entries with the same keys in their way share a line."""
    lines = ["| algorithm | entries | keys without a place |", "|---|---|---|"]
    for algorithm in ALGORITHMS:
        file = folder / f"{algorithm}.yml"
        found: dict[tuple[str, ...], list[str]] = {}
        for name in entries(file):
            found.setdefault(kept_out(file, name), []).append(f"`{name}`")
        for keys, names in sorted(found.items(), key=lambda each: (len(each[0]), each[0])):
            words = ", ".join(f"`{key}`" for key in keys) or "none: it converts"
            lines.append(f"| {algorithm.upper()} | {len(names)}: {', '.join(names)} | {words} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
