"""The ground of all rooms of the pipeline: graph, lessons, errors, seeds, versions, threads."""
