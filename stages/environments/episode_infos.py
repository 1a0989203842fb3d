"""Reads the infos of finished episodes: success, and the numbers that `environment.info_keys` names.

Only the infos at an episode's end are read. The Gymnasium and PettingZoo groups report the values as statistics, one
value per episode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.protocol import StatisticValues

log = logging.getLogger(__name__)

SUCCESS = ("is_success", "success")
"""Info keys that environments use to report that an episode reached its goal. The first of them that is present
counts."""
SUCCESS_RATE = "Environment/Success Rate"
_PATIENCE = 10
"""Number of episodes without a key after which a warning names the key."""


class EpisodeInfos:
    """Extracts numbers from infos.

    Args:
        keys: `environment.info_keys`.
        name: the environment's name, used in messages.
    """

    def __init__(self, keys: Sequence[str], name: str) -> None:
        self._keys = keys
        self._name = name
        self._ended = 0
        self._keys_seen: set[str] = set()
        self._warned = not keys

    def of_vector(self, infos: Any, ended: NDArray[np.intp]) -> dict[str, StatisticValues]:
        """Extract the numbers for the instances in `ended` from a vector environment's infos.

        Args:
            infos: columns [n, …] keyed by name, each with a column `_key` that is true where an instance has a value.
                Older Gymnasium versions return `final_info` instead, with an info or None for each instance.
            ended: indices of the instances whose episodes ended.
        """
        if not isinstance(infos, Mapping):
            return {} if infos is None else self.of_episodes([infos[i] for i in ended if infos[i] is not None])
        columns = {}
        for key in (*SUCCESS, *self._keys):
            if key in infos:
                present = infos.get(f"_{key}")
                which = ended if present is None else ended[np.asarray(present, np.bool_)[ended]]
                columns[key] = [infos[key][i] for i in which] if isinstance(infos[key], list) else infos[key][which]
        if not columns and self._warned:
            return {}
        return self._measured(columns, len(ended), infos)

    def of_episodes(self, infos: Sequence[Mapping[str, Any]]) -> dict[str, StatisticValues]:
        """Extract the numbers from individual infos, one for each episode."""
        keys = (*SUCCESS, *self._keys)
        columns = {key: values for key in keys if (values := [info[key] for info in infos if key in info])}
        return self._measured(columns, len(infos), {key for info in infos for key in info})

    def _measured(self, columns: Mapping[str, Any], episodes: int, keys: Iterable[str]) -> dict[str, StatisticValues]:
        statistics = {}
        numbers = {key: values for key, column in columns.items() if (values := _numbers(column))}
        for key in self._keys:
            if key in numbers:
                statistics[f"Environment/{key}"] = StatisticValues(numbers[key])
                self._keys_seen.add(key)
        for key in SUCCESS:
            if key in numbers:
                statistics[SUCCESS_RATE] = StatisticValues(numbers[key])
                break
        self._ended += episodes
        if not self._warned and self._ended >= _PATIENCE:
            self._warn_of_missing(keys)
        return statistics

    def _warn_of_missing(self, keys: Iterable[str]) -> None:
        self._warned = True
        missing = [key for key in self._keys if key not in self._keys_seen]
        if missing:
            present = sorted(str(key) for key in keys if not str(key).startswith("_"))
            log.warning(
                "%s: environment.info_keys: no numeric value for %s in the infos at the end of the first %d episodes "
                "(found: %s)",
                self._name,
                " or ".join(f"'{key}'" for key in missing),
                self._ended,
                ", ".join(present) or "none",
            )


def _numbers(values: Any) -> tuple[float, ...]:
    """Return the numbers and booleans among the values; a value may be a one-element array."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return tuple(values.reshape(-1).tolist()) if values.size == len(values) else ()
    return tuple(float(value) for value in map(_single, values) if value is not None)


def _single(value: Any) -> float | None:
    array = np.asarray(value)
    return float(array.reshape(())[()]) if array.size == 1 and array.dtype.kind in "biuf" else None
