"""The policy server: serves models that map observations to actions, over HTTP and gRPC, with batched requests."""
