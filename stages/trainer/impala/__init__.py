"""The actor–learner with V-trace, replay and cloning (imports torch).

The steps of one update, in order, as called by `trainer.ImpalaTrainer.learn`:

1. `headrace.stages.trainer.on_policy.rollout_buffer`: fresh trajectories are buffered in columns, cut into unrolls.
2. `trainer.UnrollReplay`: past unrolls are drawn and appended to the fresh ones.
3. `gradients.Unrolls`: both, in the form that the network and the losses expect.
4. `update.vtrace`: value targets and advantages, corrected for the policies that acted.
5. `update`: the losses, and one gradient step on all unrolls together.
"""

from headrace.stages.trainer.impala.trainer import ImpalaTrainer

__all__ = ["ImpalaTrainer"]
