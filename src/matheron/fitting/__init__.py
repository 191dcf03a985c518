"""Hyperparameters from data: matheron.fit, and a summary of the result."""

from .hyperparameters import default_kernel_priors as default_kernel_priors
from .hyperparameters import weak_priors as weak_priors
from .laplace import OutcomesLeftOut as OutcomesLeftOut
from .laplace import approximate as approximate
from .maximise import fit as fit
from .search import FitWarning as FitWarning
from .search import maximised as maximised
from .table import Summary as Summary
from .table import summary as summary
