"""What engines share: programs, servers and workers, and groups of them with partial ticks, restarts, episodes."""
