"""Curricula: environment parameters whose lessons follow what is learned."""
