"""Unity as an environment: several Unity programs, or the Editor, as one group, each stepped on its own."""
