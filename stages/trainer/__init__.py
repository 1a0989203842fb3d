"""Trainers, and the code they share. A trainer's module (and with it torch) is imported only to build the trainer."""
