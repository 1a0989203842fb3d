"""Modules that all pipeline packages share: the run's graph, lessons, errors, seeds, output, processes, signals."""
