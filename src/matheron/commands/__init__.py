"""The commands for someone with a table: sample, fit, evaluate, minimize. Heavy imports wait until a command runs."""

from .evaluating import evaluate as evaluate
from .minimising import minimize as minimize
from .modelling import fit as fit
from .sampling import sample as sample
