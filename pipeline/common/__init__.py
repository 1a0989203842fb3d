"""Shared by all pipeline packages: graph, lessons, errors, seeds, versions, threads."""
