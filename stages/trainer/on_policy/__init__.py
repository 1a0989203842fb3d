"""What on-policy trainers share (imports torch). The algorithms are `ppo`, `poca` and `impala`, next to this folder.

- `trainer`: collects the trajectories of one behaviour until there are enough rows for an update, and
  computes each reward signal's reward for each row; state and policy.
- `rollout`: cuts the rows of an update into minibatches, for PPO and POCA.
- `anchor`: regularises a policy.
"""
