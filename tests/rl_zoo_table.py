"""The tables of docs/stable-baselines3.md: what comes of each key, and of each entry of rl-baselines3-zoo's files.

python tests/rl_zoo_table.py [FOLDER]      FOLDER: the zoo's `hyperparams`, with ppo.yml and sac.yml
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.config.legacy.rl_zoo import keys
from headrace.config.legacy.rl_zoo.conversion import in_words
from headrace.config.load import convert
from headrace.config.yaml_reader import read_file

ALGORITHMS = ("ppo", "sac")
ANY = {"default": "Own-v0", "atari": "ALE/Pong-v5"}
"""Environments that the entries for several stand for."""
PARTS: Mapping[str, tuple[Mapping[str, keys.Key], Mapping[str, keys.Key]]] = {
    "": (keys.PPO, keys.SAC),
    "replay_buffer_kwargs.": ({}, keys.SAC_HINDSIGHT),
    "policy_kwargs.": (keys.PPO_POLICY, keys.SAC_POLICY),
    "normalize.": (keys.NORMALIZE, keys.NORMALIZE),
}


def entries(file: Path) -> list[str]:
    """Return the names of a file's entries."""
    return list(read_file(file).data)


def kept_out(file: Path, name: str) -> tuple[str, ...]:
    """Convert an entry; return the keys that have no place."""
    left_out = convert(file, env_id=ANY.get(name, name)).left_out
    return tuple(each.partition(":")[0].rpartition(".")[2] for each in left_out)


def table(folder: Path) -> str:
    """Return the table of entries: those with the same keys in their way share a line."""
    lines = ["| algorithm | entries | keys without an equivalent |", "|---|---|---|"]
    for algorithm in ALGORITHMS:
        file = folder / f"{algorithm}.yml"
        found: dict[tuple[str, ...], list[str]] = {}
        for name in entries(file):
            found.setdefault(kept_out(file, name), []).append(f"`{name}`")
        for left_out, names in sorted(found.items(), key=lambda each: (len(each[0]), each[0])):
            words = ", ".join(f"`{key}`" for key in left_out) or "none"
            lines.append(f"| {algorithm.upper()} | {len(names)}: {', '.join(names)} | {words} |")
    return "\n".join(lines)


def keys_table() -> str:
    """Return the table of keys: of both algorithms where they have the same, with their default."""
    lines = ["| key | algorithm | SB3's default | Headrace |", "|---|---|---|---|"]
    for prefix, both in PARTS.items():
        for name in dict.fromkeys(name for each in both for name in each):
            here = {algorithm: each[name] for algorithm, each in zip(ALGORITHMS, both, strict=True) if name in each}
            alike = len(set(map(_row, here.values()))) == 1
            for algorithms in ("ppo, sac",) if alike and len(here) == 2 else here:
                lines.append(f"| `{prefix}{name}` | {algorithms} | {_row(here[algorithms.partition(',')[0]])} |")
    return "\n".join(lines)


def _row(key: keys.Key) -> str:
    default = "" if key.default is None else f"`{in_words(key.default)}`"
    if key.to is None:
        return f"{default} | no equivalent: {key.why}"
    if key.to == keys.IDLE:
        return f"{default} | no effect on learning"
    also = f", `{key.also[0]}`" if key.also else ""
    return f"{default} | `{key.to}`{also}{key.note and f' ({key.note})'}"


if __name__ == "__main__":
    print(keys_table())
    for folder in sys.argv[1:]:
        print(table(Path(folder)))
