"""matheron: draw functions from Gaussian process posteriors, and evaluate them anywhere.

a kernel and data    matheron.kernels, ExactGP, SparseGP
  -> solvers/        factor(K), then solve(b)
  -> features/       x -> Phi: a finite basis for the prior
  -> draw            Matheron's rule
  -> Paths           what you hold: prior path + update path
  -> evaluate/       how Paths are computed
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import kernels as kernels
from . import means as means
from . import operators as operators
from . import solvers as solvers
from . import transforms as transforms
from .drawing import draw as draw
from .drawing import draw_prior as draw_prior
from .features import Features as Features
from .gp import Batch as Batch
from .gp import Ensemble as Ensemble
from .gp import ExactGP as ExactGP
from .gp import Outputs as Outputs
from .gp import SelectedOutputs as SelectedOutputs
from .gp import SparseGP as SparseGP
from .libraries import describe as describe
from .likelihood import LeaveOneOut as LeaveOneOut
from .likelihood import leave_one_out as leave_one_out
from .likelihood import log_marginal_likelihood as log_marginal_likelihood
from .paths import AbstractPaths as AbstractPaths
from .paths import BatchPaths as BatchPaths
from .paths import EnsemblePaths as EnsemblePaths
from .paths import OutputPaths as OutputPaths
from .paths import Paths as Paths
from .paths import SelectedPaths as SelectedPaths
from .paths import SpreadWarning as SpreadWarning
from .solvers import JitterWarning as JitterWarning
from .store import load as load
from .streamed import StreamedGP as StreamedGP
from .updates import matheron as matheron
from .updates import weight_space_update as weight_space_update

# The applications, and what judges draws: imported when first asked for, since they take half of the time.
if _TYPE_CHECKING:
    from . import bounds as bounds
    from . import fields as fields
    from . import metrics as metrics
    from . import plots as plots
    from . import samplers as samplers
    from . import thompson as thompson
    from .diagnostics import Diagnosis as Diagnosis
    from .diagnostics import diagnose as diagnose
    from .dynamics import DivergenceWarning as DivergenceWarning
    from .dynamics import rollout as rollout
    from .fitting import FitWarning as FitWarning
    from .fitting import Summary as Summary
    from .fitting import fit as fit
    from .fitting import summary as summary
    from .thompson import Minima as Minima
    from .thompson import maximize as maximize
    from .thompson import minimize as minimize
else:
    _MODULES = ("bounds", "diagnostics", "dynamics", "fields", "fitting", "metrics", "plots", "samplers", "thompson")
    _LATER = {
        **dict(zip(_MODULES, _MODULES, strict=True)),
        **dict.fromkeys(("Diagnosis", "diagnose"), "diagnostics"),
        **dict.fromkeys(("DivergenceWarning", "rollout"), "dynamics"),
        **dict.fromkeys(("FitWarning", "Summary", "fit", "summary"), "fitting"),
        **dict.fromkeys(("Minima", "maximize", "minimize"), "thompson"),
    }

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'matheron' has no attribute {name!r}")
        module = _import_module(f".{_LATER[name]}", __name__)
        return module if name == _LATER[name] else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})

    # `import *` brings what is imported later, too.
    globals()["__all__"] = [name for name in __dir__() if not name.startswith("_")]


__version__ = "0.1.0"
