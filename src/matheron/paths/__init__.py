"""What a user holds: prior path + update path."""

from .base import AbstractPaths as AbstractPaths
from .base import require_paths as require_paths
from .conditioning import Conditional as Conditional
from .conditioning import SpreadWarning as SpreadWarning
from .conditioning import update_given as update_given
from .conditioning import values_at as values_at
from .multi_model import BatchPaths as BatchPaths
from .multi_model import EnsemblePaths as EnsemblePaths
from .multi_model import OutputPaths as OutputPaths
from .multi_model import SelectedPaths as SelectedPaths
from .paths import Paths as Paths
from .paths import PriorPlusUpdate as PriorPlusUpdate
from .precision import in_enough_digits as in_enough_digits
from .precision import sparse_deviations as sparse_deviations
from .prior import PriorPaths as PriorPaths
from .prior import mixed as mixed
from .prior import prior_on as prior_on
from .update import Inducing as Inducing
from .update import UpdatePaths as UpdatePaths
