"""The policy server: models answer observations with actions, over HTTP and gRPC; waiting requests share a decision."""
