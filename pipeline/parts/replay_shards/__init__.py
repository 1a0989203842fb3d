"""SAC's replay buffer split into shards, each in a separate host."""
