"""The run's own game, in which people play on the live page."""
