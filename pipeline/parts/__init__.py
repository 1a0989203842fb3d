"""Parts of a run: one folder a feature, with its side in main, in hosts and on the page."""
