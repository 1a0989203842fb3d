"""The folder of a run: its files, its lock, its status, its checkpoints."""
