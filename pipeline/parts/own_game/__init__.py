"""The run's own game, in which persons play on the live page."""
