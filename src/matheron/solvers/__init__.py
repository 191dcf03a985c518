"""Solvers for the update: values with settings of their own, that factor an operator once and then solve many times.

`draw(..., solver=...)` and `condition_on(..., solver=...)` take "auto", "cholesky", "cg", or one of these values.
"""

from .base import Operator as Operator
from .base import Posterior as Posterior
from .base import Solver as Solver
from .base import State as State
from .base import Stats as Stats
from .block_descent import BlockDescent as BlockDescent
from .cholesky import Cholesky as Cholesky
from .cholesky import CholeskyState as CholeskyState
from .cholesky import JitterWarning as JitterWarning
from .choose import Auto as Auto
from .choose import as_solver as as_solver
from .dense import block_of as block_of
from .dense import coupled_diagonal as coupled_diagonal
from .dense import covariance as covariance
from .dense import symmetric_blocks as symmetric_blocks
from .factor import Factor as Factor
from .lattice import FourierLattice as FourierLattice
from .lattice import MisfitWarning as MisfitWarning
from .pcg import PCG as PCG
from .pcg import ConvergenceWarning as ConvergenceWarning
from .processes import Processes as Processes
