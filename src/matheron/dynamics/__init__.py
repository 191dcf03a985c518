"""Dynamics: simulate systems along drawn functions."""

from .rollout import DivergenceWarning as DivergenceWarning
from .rollout import rollout as rollout
