"""Dynamics: simulate systems along drawn functions."""

from .episodes import fit_dynamics as fit_dynamics
from .episodes import transitions as transitions
from .iterative import IterativeDrift as IterativeDrift
from .rollouts import DivergenceWarning as DivergenceWarning
from .rollouts import rollout as rollout
