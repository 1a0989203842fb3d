"""Constants of the project. A module may have any name, `config` included."""

LENGTH = 10  # cells of the river
CURRENT = 0.2  # probability that a step is lost to the current
MAX_STEPS = 40
