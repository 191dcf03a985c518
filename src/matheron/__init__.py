"""matheron: draw functions from Gaussian process posteriors, and evaluate them anywhere.

a kernel and data    matheron.kernels, ExactGP, SparseGP
  -> solvers/        factor(K), then solve(b)
  -> features/       x -> Phi: a finite basis for the prior
  -> draw            Matheron's rule
  -> Paths           what you hold: prior path + update path
  -> evaluate/       how Paths are computed
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"

# Names are imported when they are first asked for: torch takes two seconds, which `matheron --help` and a shell that
# completes words should not take. Type checkers read the first list, Python the second; a test holds them together.
if _TYPE_CHECKING:
    from . import bounds as bounds
    from . import fields as fields
    from . import kernels as kernels
    from . import means as means
    from . import metrics as metrics
    from . import operators as operators
    from . import plots as plots
    from . import samplers as samplers
    from . import solvers as solvers
    from . import thompson as thompson
    from . import transforms as transforms
    from .diagnostics import Diagnosis as Diagnosis
    from .diagnostics import diagnose as diagnose
    from .drawing import draw as draw
    from .drawing import draw_prior as draw_prior
    from .dynamics import DivergenceWarning as DivergenceWarning
    from .dynamics import rollout as rollout
    from .features import Features as Features
    from .fitting import FitWarning as FitWarning
    from .fitting import Summary as Summary
    from .fitting import fit as fit
    from .fitting import summary as summary
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
    from .thompson import Minima as Minima
    from .thompson import maximize as maximize
    from .thompson import minimize as minimize
    from .updates import matheron as matheron
    from .updates import weight_space_update as weight_space_update
else:
    _MODULES = "bounds fields kernels means metrics operators plots samplers solvers thompson transforms"
    _NAMES = {
        "diagnostics": "Diagnosis diagnose",
        "drawing": "draw draw_prior",
        "dynamics": "DivergenceWarning rollout",
        "features": "Features",
        "fitting": "FitWarning Summary fit summary",
        "gp": "Batch Ensemble ExactGP Outputs SelectedOutputs SparseGP",
        "libraries": "describe",
        "likelihood": "LeaveOneOut leave_one_out log_marginal_likelihood",
        "paths": "AbstractPaths BatchPaths EnsemblePaths OutputPaths Paths SelectedPaths SpreadWarning",
        "solvers": "JitterWarning",
        "store": "load",
        "streamed": "StreamedGP",
        "thompson": "Minima maximize minimize",
        "updates": "matheron weight_space_update",
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
    _PUBLIC = sorted([*_MODULES.split(), *_HOMES])
    globals()["__all__"] = _PUBLIC

    def __getattr__(name: str) -> object:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOMES:
            value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        elif name.startswith("_") or find_spec(f".{name}", __name__) is None:
            raise AttributeError(f"module 'matheron' has no attribute {name!r}")
        else:  # a module of the library, whether it is public or not
            value = import_module(f".{name}", __name__)
        globals()[name] = value  # so that this function is asked once
        return value

    def __dir__() -> list[str]:
        return [*_PUBLIC, "__version__"]
