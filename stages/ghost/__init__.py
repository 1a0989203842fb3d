"""The ghost stage: self-play's controller, snapshots, ratings and choice of opponents."""
