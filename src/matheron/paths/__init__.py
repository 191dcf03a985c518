"""What a user holds: prior path + update path."""

from .base import AbstractPaths as AbstractPaths
from .base import require_paths as require_paths
from .exact import CentredUpdate as CentredUpdate
from .exact import ExactUpdate as ExactUpdate
from .exact import exact_update as exact_update
from .kept_factor import Factor as Factor
from .multi_model import BatchPaths as BatchPaths
from .multi_model import EnsemblePaths as EnsemblePaths
from .multi_model import OutputPaths as OutputPaths
from .multi_model import SelectedPaths as SelectedPaths
from .observations import Data as Data
from .paths import Paths as Paths
from .paths import PriorPlusUpdate as PriorPlusUpdate
from .prior import PriorPaths as PriorPaths
from .prior import mixed as mixed
from .prior import prior_on as prior_on
from .prior import values_at as values_at
from .sparse import Inducing as Inducing
from .sparse import SparseUpdate as SparseUpdate
from .sparse import sparse_update as sparse_update
from .spread import SpreadWarning as SpreadWarning
from .update import KernelSum as KernelSum
from .update import Update as Update
