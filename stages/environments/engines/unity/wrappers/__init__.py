"""Unity programs as Gymnasium and PettingZoo environments for other trainers; the pipeline does not use them."""
