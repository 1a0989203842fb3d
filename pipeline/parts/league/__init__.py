"""A league: several learners of one behaviour, who play each other and a pool of frozen players."""
