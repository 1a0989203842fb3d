"""Spaces of Gymnasium and PettingZoo as columns: observations and actions."""
