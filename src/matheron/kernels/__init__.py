"""Kernels k(x, x') with their spectral measures. Each class states its parametrisation as a formula.

Kernels are exported by the `__all__` of their modules.
"""
# ruff: noqa: F403

from .algebra import *
from .base import *
from .fidelity import *
from .linear import *
from .own import *
from .radial import *
from .rational_quadratic import *
from .spatial import *
from .stationary import *
from .tanimoto import *
