"""The policy server: models answer observations with actions, over HTTP and gRPC; several requests are one decision."""
