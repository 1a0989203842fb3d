"""Finds the requested entry in a file, and the entry's algorithm."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from headrace.config.errors import suggest
from headrace.config.legacy.old_values import OldValue, is_number
from headrace.config.yaml_reader import Document

HOW = "run-pipeline --convert hyperparams.yml --id CartPole-v1"
"""A command that converts an entry, as an example in messages."""

_FOR_ATARI, _FOR_ALL = "atari", "default"
_HERE = ("ppo", "sac")
_ELSEWHERE = ("a2c", "ars", "crossq", "ddpg", "dqn", "her", "ppo_lstm", "qrdqn", "td3", "tqc", "trpo")
_OF_ONE_ALONE: Mapping[str, tuple[Collection[str], Collection[str]]] = {
    "ppo": (("n_epochs", "clip_range"), ()),
    "sac": (("ent_coef",), ("buffer_size", "learning_starts", "train_freq", "tau", "gradient_steps")),
}
"""Two groups of keys per algorithm. An entry for the algorithm has at least one key from each non-empty group."""
_VERSION = re.compile(r"-v\d+")


class NoEntryError(Exception):
    """Raised if the entry or its algorithm can't be determined; the message completes "<file>: …"."""


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """The entry to convert, as described on the command line."""

    env_id: str | None = None
    """The environment's id; None if not given."""
    algorithm: str | None = None
    """`ppo` or `sac`; None to infer it from the file's name or keys."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry to convert."""

    name: str
    """The entry's name in the file; empty if the file is a single entry, as the zoo saves it with a trained agent."""
    env_id: str
    algorithm: str
    values: Mapping[str, OldValue]
    """The entry's values, keyed by name."""
    whole: OldValue

    def plain(self, key: str, default: Any = None) -> Any:
        """Return the plain value under a key, or the default."""
        return self.values[key].value if key in self.values else default


def is_rl_zoo(document: Document) -> bool:
    """Return True if a file has the form of the zoo's files, or of a single entry."""
    return any("n_timesteps" in entry for entry in _entries(document).values())


def find_entry(document: Document, request: EntryRequest) -> Entry:
    """Find the entry for an environment, as the zoo does, and its algorithm.

    Raises:
        NoEntryError: if no entry, or more than one, matches the arguments.
    """
    entries = _entries(document)
    if not is_rl_zoo(document):
        raise NoEntryError("--id and --algo are only for rl-baselines3-zoo files, whose entries have n_timesteps")
    if request.env_id is None:
        listed = [name for name in entries if name not in ("", _FOR_ATARI, _FOR_ALL)]
        names = "" if "" in entries else f"; it has entries for {', '.join(listed) or 'all environments'}"
        raise NoEntryError(f"is an rl-baselines3-zoo file; name the environment, as in '{HOW}'{names}")
    if request.env_id in (_FOR_ATARI, _FOR_ALL):
        raise NoEntryError(
            f"'{request.env_id}' is not an environment; use --id to name an environment that the entry applies to"
        )
    name = _name_for(request.env_id, entries)
    values = entries[name]
    whole = OldValue(document.data, document)
    algorithm = _algorithm(request.algorithm, document.name, values)
    return Entry(name, request.env_id, algorithm, values, whole.at(name) if name else whole)


def is_atari(env_id: str) -> bool:
    """Return True if an id looks like that of an Arcade Learning Environment game."""
    return env_id.startswith("ALE/") or "NoFrameskip-v" in env_id


def _entries(document: Document) -> dict[str, dict[str, OldValue]]:
    """Return each entry's values, keyed by the entry's name; a single entry has an empty name."""
    whole = OldValue(document.data, document)
    if isinstance(document.data, list):  # an OrderedDict, as in the zoo's `config.yml`
        pairs = [whole.at(number) for number, pair in enumerate(document.data) if isinstance(pair, list)]
        return {"": {str(pair.value[0]): pair.at(1) for pair in pairs if len(pair.value) == 2}}
    if is_number(whole.value.get("n_timesteps") if isinstance(whole.value, dict) else None):
        return {"": dict(whole.items())}
    return {name: dict(entry.items()) for name, entry in whole.items() if isinstance(entry.value, dict)}


def _name_for(env_id: str, entries: Iterable[str]) -> str:
    short = env_id.rpartition(":")[2]  # in `module:id`, the module registers the environment
    names = list(entries)
    others = [name for name in names if _VERSION.split(name)[0] == _VERSION.split(short)[0]]
    tried: list[str] = ["", env_id, short, *others[:1], *([_FOR_ATARI] if is_atari(short) else []), _FOR_ALL]
    for name in tried:
        if name in names:
            return name
    raise NoEntryError(f"has no entry '{env_id}'{suggest(short, names)}; entries: {', '.join(names)}")


def _algorithm(named_algorithm: str | None, file: str, values: Collection[str]) -> str:
    algorithms = (*_HERE, *_ELSEWHERE)
    stem = PurePath(file).stem.lower()
    named = [name for name in algorithms if stem == name or re.fullmatch(rf"{name}[-_.].*|.*[-_.]{name}", stem)]
    by_keys = [
        name
        for name, (decisive, beside) in _OF_ONE_ALONE.items()
        if any(key in values for key in decisive) and (not beside or any(key in values for key in beside))
    ]
    guessed = [*sorted(named, key=len, reverse=True)[:1], *by_keys]
    chosen = [named_algorithm] if named_algorithm is not None else guessed[:1]
    if not chosen:
        raise NoEntryError("neither its name nor its keys identify the algorithm; add --algo ppo or --algo sac")
    if chosen[0] not in _HERE:
        how = "--algo names" if named_algorithm is not None else "its name says"
        raise NoEntryError(
            f"{how} {chosen[0]}, which has no counterpart here; the algorithms that can be converted are: "
            f"{', '.join(_HERE)}"
        )
    return chosen[0]
