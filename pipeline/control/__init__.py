"""Control between hosts and main: the messages, and the channel that carries them."""
