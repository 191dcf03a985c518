"""Thompson sampling: minimise drawn functions."""

from .minimize import Minima as Minima
from .minimize import maximize as maximize
from .minimize import minimize as minimize
