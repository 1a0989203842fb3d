"""The main process of a run: starts, connects, supervises and ends hosts."""
