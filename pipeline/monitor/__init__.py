"""The live page of a run, its HTTP API, and the same page for finished runs."""
