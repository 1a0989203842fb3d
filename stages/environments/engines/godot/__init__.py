"""Godot games: the addon's protocol, several games or the editor as one group, and `GodotEnv` for scripts."""
