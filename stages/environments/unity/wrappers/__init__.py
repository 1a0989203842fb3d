"""Unity programs as environments of Gymnasium and PettingZoo, for other trainers; the pipeline uses none of them."""
