"""Imitation: demonstrations, where they come from, and learning from them (`cloning`, which needs torch)."""
