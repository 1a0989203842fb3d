"""Spaces of Gymnasium and PettingZoo as columns: observations, actions, and wrappers of single environments."""
