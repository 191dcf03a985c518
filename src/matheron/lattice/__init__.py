"""The Fourier lattice: series of stationary kernels in up to three dimensions, and data solved for on them.

It is an engine: its import adds its evaluator, its planner of features and its solver to those of earlier rooms.
"""

from .. import evaluate as _evaluate
from ..features.choose import PLANNERS as _PLANNERS
from .evaluator import LatticeTransforms as _LatticeTransforms
from .planning import PLANNER as _PLANNER
from .update import FourierLattice as FourierLattice
from .update import MisfitWarning as MisfitWarning

# If there is a domain, the lattice is asked first which terms of a kernel it takes.
_PLANNERS.append(_PLANNER)
# Terms on lattices are evaluated by Fourier transforms.
_evaluate.register(_LatticeTransforms())
