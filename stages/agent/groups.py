"""Groups of agents that work for a common reward, as the agent processor keeps them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Columns
from headrace.stages.slots import Numbers, enlarged


class Groups:
    """The groups of one behaviour id's agents, by slot.

    Attributes:
        ids: [total] the group in which an agent took its open decision, 0 for none.
        returns: [total] sum of the group's rewards that an agent got in its episode.
        tick: the last tick that was added.
    """

    def __init__(self, total: int) -> None:
        self.ids = np.zeros(total, np.int64)
        self.returns = np.zeros(total, np.float64)
        self.tick = 0
        self._parted: list[Numbers] = []

    def enlarge(self, total: int) -> None:
        """Make room for this many slots."""
        self.ids, self.returns = enlarged(self.ids, total), enlarged(self.returns, total)

    def note_closed(self, slots: Numbers, left: Numbers | None = None) -> Columns:
        """Note that trajectories are closed now.

        Args:
            slots: [k] of their agents.
            left: where these agents end, slots of those that go on; None where they go on themselves.

        Returns:
            `GROUP_TRAJECTORY_COLUMNS` [k].
        """
        ids = self.ids[slots]
        self._parted.append(ids)
        goes_on = np.ones(len(ids), np.bool_) if left is None else (ids != 0) & np.isin(ids, self.ids[left])
        return {"group_ids": ids, "next_ticks": np.full(len(ids), self.tick), "group_left": goes_on}

    @property
    def anyone_parted(self) -> bool:
        """True if a trajectory was closed since `forget_parted`."""
        return bool(self._parted)

    def parted(self, slots: Numbers) -> Numbers:
        """Those of the agents that are in a group of which a trajectory was closed since `forget_parted`."""
        ids = self.ids[slots]
        mates: Numbers = slots[(ids != 0) & np.isin(ids, np.concatenate(self._parted))]
        return mates

    def forget_parted(self) -> None:
        """Forget the closed trajectories: those of all mates were cut."""
        self._parted.clear()

    def of_episodes(
        self, slots: Numbers, last_rewards: NDArray[np.float32], steps: Numbers, group_left: NDArray[np.bool_]
    ) -> Columns:
        """The groups' columns of agents' episodes that end.

        A group is over when none of its agents is left. Then, of the agents that ended last, the row of the one with
        the longest episode is marked: its sum of rewards is the group's.

        Args:
            slots: [e] of those agents.
            last_rewards: [e] their groups' rewards of the last step.
            steps: [e] decisions of each in its episode.
            group_left: [e] true where mates go on.

        Returns:
            `GROUP_EPISODE_COLUMNS` [e].
        """
        ids = self.ids[slots]
        order = np.lexsort((-steps, ids))
        over = np.zeros(len(ids), np.bool_)
        over[order[np.unique(ids[order], return_index=True)[1]]] = True
        over &= (ids != 0) & ~group_left
        returns = (self.returns[slots] + last_rewards).astype(np.float32)
        return {"episode_group_returns": returns, "episode_group_over": over}
