"""The live page of a run, its HTTP API, and the same page over finished runs."""
