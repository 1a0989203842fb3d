"""Games that run as programs of their own, of whatever engine: their processes, their errors, their rows."""
