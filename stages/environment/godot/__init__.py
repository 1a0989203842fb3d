"""Godot as an environment: several builds of a game, or its editor, as one group."""
