"""Built-in games, each with its scripted player."""
