"""Dynamics: simulate systems along drawn functions."""

from . import fitzhugh_nagumo as fitzhugh_nagumo
from .iterative import IterativeDrift as IterativeDrift
from .rollout import DivergenceWarning as DivergenceWarning
from .rollout import rollout as rollout
