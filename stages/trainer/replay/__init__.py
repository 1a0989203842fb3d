"""Replay memories and what off-policy trainers make from them (imports torch).

- `replay_memory`, `hindsight`: the newest steps and their file, and goals relabelled after the fact.
- `minibatch`: rows as network inputs, and measurements of gradient steps.
- `pace`: how many updates are due.
- `sharded_replay`: a replay memory in separate hosts.
"""
