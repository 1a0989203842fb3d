"""The project's constants. A module may have any name, including `config`."""

LENGTH = 10  # number of cells across the river
CURRENT = 0.2  # probability that the current cancels a step
MAX_STEPS = 40
