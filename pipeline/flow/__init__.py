"""Flow control: the ledger of credits, the window that bounds the policy lag, and the choice of the window's size."""
