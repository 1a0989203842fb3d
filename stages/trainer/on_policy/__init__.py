"""What on-policy trainers share (imports torch). The algorithms are `ppo`, `poca` and `impala`, next to this folder.

- `trainer`: collects the trajectories of one behaviour until there are enough rows for an update, and
  computes each reward signal's reward for each row; state and policy.
- `rollout`: the buffer that holds them, and the minibatches that are cut from it.
- `critic`: the critic's values, and their evaluation with a memory.
- `anchor`: regularises a policy.
"""
