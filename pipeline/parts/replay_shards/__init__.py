"""SAC's replay buffer in shards, each in a separate host."""
