"""A league: several learners for one behaviour, which play each other and a pool of frozen players."""
