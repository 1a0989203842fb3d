"""Several programs of one engine as one environment group: partial ticks, restarts, episodes."""
