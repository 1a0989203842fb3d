"""Godot: the addon's protocol, several builds of a game or the editor as one group, and `GodotEnv` for scripts."""
