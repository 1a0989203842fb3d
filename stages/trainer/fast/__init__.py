"""Whatever computes updates faster than the readable trainers (imports torch).

- `accelerate`: replaces an update with a faster one if one fits, once, when a trainer is made.
- `ppo`, `impala`, `sac`: manual gradients of perceptrons on a CPU, and captured gradient steps on a GPU.
- `perceptrons`: the equations of the manual gradients, for an actor and a critic.
- `cuda_graphs`: captures a gradient step, and replays it.

Tests compare each accelerated update with the readable one, and docs/performance.md has its measured gain.
`torch_settings.acceleration: none` leaves the trainers as they are written.
"""
