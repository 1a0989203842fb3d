"""Godot for scripts: the class with which users of Godot RL Agents step a game."""

from __future__ import annotations

from headrace.stages.environments.engines.godot.environment import GodotEnv, GodotEnvError

__all__ = ["GodotEnv", "GodotEnvError"]
