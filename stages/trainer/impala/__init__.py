"""The IMPALA actor–learner with V-trace, replay and cloning (imports torch).

The steps of one update, in order, as called by `trainer.ImpalaTrainer.learn`:

1. `headrace.stages.trainer.on_policy.rollout_buffer`: new trajectories are buffered in columns, and cut into unrolls.
2. `trainer.UnrollReplay`: past unrolls are drawn and appended to the new ones.
3. `gradients.Unrolls`: all unrolls are converted to the form that the network and the losses expect.
4. `update.vtrace`: value targets and advantages are computed, and corrected for the policies that acted.
5. `update`: the losses are computed, and one gradient step is taken on all unrolls together.
"""

from headrace.stages.trainer.impala.trainer import ImpalaTrainer

__all__ = ["ImpalaTrainer"]
