"""Unity as an environment: several Unity programs, or the Editor, as one group whose members step on their own."""
