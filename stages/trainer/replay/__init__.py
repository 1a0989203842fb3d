"""Replay memories and what off-policy trainers make from them (imports torch).

- `replay_memory`: the newest steps and their file, minibatches of them, and measurements of gradient steps.
- `hindsight`: goals relabelled after the fact.
- `pace`: how many updates are due.
- `sharded_replay`: a replay memory in separate hosts.
"""
