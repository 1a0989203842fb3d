"""The `gdrl` command for Godot RL Agents users: maps its flags, and its example scripts' flags, to Headrace runs."""
