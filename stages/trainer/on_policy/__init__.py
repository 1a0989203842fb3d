"""On-policy training, from rows to weights, shared by PPO and POCA (imports torch).

The steps of one update, in order, as run by `trainer.OnPolicyTrainer.learn` and `headrace.stages.trainer.ppo.trainer`:

1. `rollout_buffer`: trajectories are buffered in columns until there are `buffer_size` rows. `trajectories` splits the
   trajectories that cross this limit.
2. `signals`: computes each reward signal's reward for each row, and the advantages from rewards and values.
3. `values`: computes the critic's value of each row and of each trajectory's final observation, and the weights of rows
   from older policies.
4. `minibatches`: holds the rows with their targets, shuffled in each epoch, as views or in sequences.
5. `update`: PPO on one page: epochs, each minibatch's losses, and a gradient step on them.

`trainer.OnPolicyTrainer` also collects the rows for IMPALA (`stages/trainer/impala/`). PPO and POCA have different
critics, and share everything else.
"""
