"""Unity programs as environments of Gymnasium and PettingZoo, for other trainers; the pipeline does not use these."""
