"""SAC's replay buffer in shards, each in a host of its own."""
