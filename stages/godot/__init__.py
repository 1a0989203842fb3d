"""Games made with Godot and the addon of Godot RL Agents: its messages, its spaces, builds and their connections."""
