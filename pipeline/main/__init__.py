"""The main process of a run: starts hosts, joins them, minds them, ends them."""
