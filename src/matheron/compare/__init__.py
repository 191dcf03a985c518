"""Comparisons: the paper's other samplers, closed-form moments, distances between laws, bounds, and a diagnosis."""
