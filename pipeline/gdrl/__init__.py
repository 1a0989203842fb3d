"""The command `gdrl` of Godot RL Agents' users: its flags, and those of its example scripts, as Headrace's runs."""
