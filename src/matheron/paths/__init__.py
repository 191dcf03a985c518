"""What a user holds: prior path + update path."""

from .base import AbstractPaths as AbstractPaths
from .base import require_paths as require_paths
from .batch import BatchPaths as BatchPaths
from .conditioning import Conditional as Conditional
from .conditioning import SpreadWarning as SpreadWarning
from .conditioning import every_output as every_output
from .conditioning import update_given as update_given
from .conditioning import values_at as values_at
from .joined import EnsemblePaths as EnsemblePaths
from .joined import OutputPaths as OutputPaths
from .joined import SelectedPaths as SelectedPaths
from .on_lattice import LatticeUpdate as LatticeUpdate
from .on_lattice import error_of_mean as error_of_mean
from .on_lattice import given_on_lattice as given_on_lattice
from .on_lattice import warn_of_misfit as warn_of_misfit
from .paths import Paths as Paths
from .paths import PriorPlusUpdate as PriorPlusUpdate
from .prior import PriorPaths as PriorPaths
from .rounding import in_enough_digits as in_enough_digits
from .rounding import sparse_deviations as sparse_deviations
from .update import Inducing as Inducing
from .update import UpdatePaths as UpdatePaths
