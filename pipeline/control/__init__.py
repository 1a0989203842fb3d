"""Control between hosts and main: its messages, and the channel that carries them."""
