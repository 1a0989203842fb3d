"""Control between hosts and main: its messages, the channel that carries them, the ledger of credits."""
