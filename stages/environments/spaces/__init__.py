"""Gymnasium's and PettingZoo's spaces as columns: observations and actions."""
