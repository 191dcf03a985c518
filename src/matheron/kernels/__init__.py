"""The kernel language: k(x, x') beside its spectral measure. Parametrisations are stated in each class.

A kernel is exported by the `__all__` of its module.
"""
# ruff: noqa: F403

from .algebra import *
from .base import *
from .categorical import *
from .coregional import *
from .fidelity import *
from .linear import *
from .own import *
from .radial import *
from .rational_quadratic import *
from .spatial import *
from .stationary import *
from .tanimoto import *
