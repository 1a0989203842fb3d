"""Unity: its protocol, several programs or the Editor as one group, demo files, and the low-level script interface."""
