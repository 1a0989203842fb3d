"""The actor: environment and agent processor, hand in hand."""
