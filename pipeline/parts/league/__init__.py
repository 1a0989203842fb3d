"""A league: several learners for one behaviour, which play against each other and a pool of frozen players."""
