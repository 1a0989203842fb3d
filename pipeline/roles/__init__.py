"""Host roles: what runs in an actor, a learner, a replay or an exhibition, whatever the kind of host."""
