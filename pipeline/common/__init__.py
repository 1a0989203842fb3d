"""Modules that all pipeline packages share: the run's graph, errors, seeds, output, processes, signals."""
