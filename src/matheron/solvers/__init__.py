"""Solvers for the update: values with settings of their own, that factor an operator once and then solve many times.

`draw(..., solver=...)` and `condition_on(..., solver=...)` take "auto", "cholesky", "cg", or one of these values."""

from .base import Auto as Auto
from .base import FactoredPosterior as FactoredPosterior
from .base import Solver as Solver
from .base import State as State
from .base import Stats as Stats
from .base import as_solver as as_solver
from .block_descent import BlockDescent as BlockDescent
from .block_descent import BlockState as BlockState
from .cholesky import Cholesky as Cholesky
from .cholesky import CholeskyState as CholeskyState
from .cholesky import JitterWarning as JitterWarning
from .cholesky import safe_cholesky as safe_cholesky
from .operator import KernelOperator as KernelOperator
from .operator import Operator as Operator
from .operator import covariance as covariance
from .operator import symmetric_blocks as symmetric_blocks
from .pcg import PCG as PCG
from .pcg import ConvergenceWarning as ConvergenceWarning
from .pcg import PCGState as PCGState
from .processes import Processes as Processes
