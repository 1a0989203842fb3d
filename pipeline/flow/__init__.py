"""Flow control: the ledger of credits, the window that bounds the policy lag, and how wide it is."""
