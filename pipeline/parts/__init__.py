"""The parts of a run: one module or folder per feature, with its code for main, for hosts and for the live page."""
