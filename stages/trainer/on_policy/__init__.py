"""On-policy training, from rows to weights, as PPO and POCA share it (imports torch).

The path of one update, in order; `trainer.OnPolicyTrainer.learn` walks it:

1. `rollout_buffer`: trajectories wait in columns until there are `buffer_size` rows, where `splitting` splits them.
2. `signals`: the reward of each row, by each reward signal.
3. `critic_values`: the critic's value of each row, and of the observation after each trajectory.
4. `advantages`: advantages and value targets, made of rewards and values.
5. `trainer.current_log_probs`, `importance_weights`: what rows of older policies than the current one weigh.
6. `minibatches`: the rows with their targets, shuffled in each epoch, as views or in sequences.
7. `update`: a gradient step on each minibatch. The losses are the algorithm's (`headrace.stages.trainer.ppo.update`).

An algorithm is a subclass of `OnPolicyTrainer` that makes the network and its update, and does steps 2 to 6 in
`_prepare`; PPO's is the shortest example. `rollout_trainer` is step 1 for others as well: `stages/trainer/impala/`.
"""
