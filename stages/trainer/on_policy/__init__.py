"""On-policy training, from rows to weights, as PPO and POCA share it (imports torch).

The path of one update, in order; `trainer.OnPolicyTrainer.learn` and `headrace.stages.trainer.ppo.trainer` walk it:

1. `rollout_buffer`: trajectories wait in columns until there are `buffer_size` rows; `trajectories` splits them there.
2. `signals`: the reward of each row, by each reward signal; from rewards and values, the advantages.
3. `values`: the critic's value of each row, and of the observation after each trajectory; the weights of rows from
   older policies.
4. `minibatches`: the rows with their targets, shuffled in each epoch, as views or in sequences.
5. `update`: PPO on one page: epochs, the losses of each minibatch, and a gradient step on them.

`trainer.OnPolicyTrainer` collects the rows, for IMPALA (`stages/trainer/impala/`) as well. PPO and POCA have separate
critics, and share everything else.
"""
