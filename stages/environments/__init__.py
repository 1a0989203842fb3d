"""The environment stage, and the environments that it steps."""
