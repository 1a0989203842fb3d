"""Godot for scripts: the class that Godot RL Agents' users use to step a game."""

from __future__ import annotations

from headrace.stages.environments.godot.blocking import GodotEnvError
from headrace.stages.environments.godot.environment import GodotEnv

__all__ = ["GodotEnv", "GodotEnvError"]
