"""Parts that engines share: programs, servers and workers, and groups with partial ticks, restarts and episodes."""
