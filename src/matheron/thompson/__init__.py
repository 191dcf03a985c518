"""Thompson sampling: minimise drawn functions, and with them a function that is expensive to evaluate."""

from .candidates import Chosen as Chosen
from .candidates import best_of as best_of
from .loop import EvaluationWarning as EvaluationWarning
from .loop import Study as Study
from .loop import minimize_function as minimize_function
from .minima import InfeasibleWarning as InfeasibleWarning
from .minima import Minima as Minima
from .minima import maximize as maximize
from .minima import minimize as minimize
from .minima import minimize_together as minimize_together
from .strategies import STRATEGIES as STRATEGIES
from .strategies import suggest as suggest
from .strategies import suggest_together as suggest_together
