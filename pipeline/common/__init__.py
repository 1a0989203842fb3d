"""What every room of the pipeline stands on: its graph, errors, seeds, the loading of users' classes, lessons."""
