"""The trainable networks in torch: network bodies, actors, and actor-critics."""
