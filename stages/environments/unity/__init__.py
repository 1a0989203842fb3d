"""Unity: its protocol, several programs or the Editor as one group, demo files, the low-level interface for scripts."""
