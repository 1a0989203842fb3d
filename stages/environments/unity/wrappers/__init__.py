"""Unity programs as environments of Gymnasium and PettingZoo, for others' trainers; the pipeline uses none of them."""
