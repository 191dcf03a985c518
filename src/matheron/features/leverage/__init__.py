"""Frequencies sampled by their leverage given the data."""
