"""matheron draws functions from Gaussian process posteriors, which can then be evaluated anywhere.

This is how data flow through the library:

a kernel and data    matheron.kernels, ExactGP, SparseGP
  -> solvers/        factorise K, or solve with it iteratively
  -> features/       a finite basis for the prior, x -> Phi
  -> draw            Matheron's rule
  -> Paths           the functions: prior path + update path
  -> evaluate/       values and gradients of the functions

>>> import matheron
>>> gp = matheron.ExactGP(matheron.kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
>>> matheron.draw(gp, 64)([[0.5]]).shape
torch.Size([64, 1])
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"

# Names are imported at first use, because torch takes two seconds to import, and `matheron --help` and shell completion
# must be faster. Type checkers read the first list, and Python the second; a test checks that they agree.
if _TYPE_CHECKING:
    from . import fields as fields
    from . import kernels as kernels
    from . import lattice as lattice
    from . import plots as plots
    from . import solvers as solvers
    from . import thompson as thompson
    from .compare import bounds as bounds
    from .compare import metrics as metrics
    from .compare import samplers as samplers
    from .compare.diagnosis import Diagnosis as Diagnosis
    from .compare.diagnosis import diagnose as diagnose
    from .core.saving import load as load
    from .core.sites import Sites as Sites
    from .drawing import draw as draw
    from .drawing import draw_prior as draw_prior
    from .dynamics import DivergenceWarning as DivergenceWarning
    from .dynamics import rollout as rollout
    from .features import Features as Features
    from .fitting import FitWarning as FitWarning
    from .fitting import OutcomesLeftOut as OutcomesLeftOut
    from .fitting import Summary as Summary
    from .fitting import approximate as approximate
    from .fitting import fit as fit
    from .fitting import summary as summary
    from .fitting.evidence import LeaveOneOut as LeaveOneOut
    from .fitting.evidence import leave_one_out as leave_one_out
    from .fitting.evidence import log_marginal_likelihood as log_marginal_likelihood
    from .models import Batch as Batch
    from .models import Ensemble as Ensemble
    from .models import ExactGP as ExactGP
    from .models import LatentGP as LatentGP
    from .models import Outputs as Outputs
    from .models import SelectedOutputs as SelectedOutputs
    from .models import SparseGP as SparseGP
    from .models import likelihoods as likelihoods
    from .models import means as means
    from .models import observe as observe
    from .models import transforms as transforms
    from .models.libraries import describe as describe
    from .models.streamed import StreamedGP as StreamedGP
    from .paths import AbstractFunctions as AbstractFunctions
    from .paths import AbstractPaths as AbstractPaths
    from .paths import BatchPaths as BatchPaths
    from .paths import Composition as Composition
    from .paths import Coordinates as Coordinates
    from .paths import EnsemblePaths as EnsemblePaths
    from .paths import LinearCombination as LinearCombination
    from .paths import Mapped as Mapped
    from .paths import OutputPaths as OutputPaths
    from .paths import PartialDerivatives as PartialDerivatives
    from .paths import Paths as Paths
    from .paths import PointwiseProduct as PointwiseProduct
    from .paths import PosteriorMean as PosteriorMean
    from .paths import SelectedPaths as SelectedPaths
    from .paths import Selection as Selection
    from .paths import SpreadWarning as SpreadWarning
    from .paths import Stack as Stack
    from .paths import stack as stack
    from .paths.matheron_rule import matheron as matheron
    from .paths.matheron_rule import weight_space_update as weight_space_update
    from .solvers import JitterWarning as JitterWarning
    from .thompson import Minima as Minima
    from .thompson import maximize as maximize
    from .thompson import minimize as minimize
else:
    _MODULES = {
        "bounds": "compare.bounds",
        "fields": "fields",
        "kernels": "kernels",
        "lattice": "lattice",
        "likelihoods": "models.likelihoods",
        "means": "models.means",
        "metrics": "compare.metrics",
        "observe": "models.observe",
        "plots": "plots",
        "samplers": "compare.samplers",
        "solvers": "solvers",
        "thompson": "thompson",
        "transforms": "models.transforms",
    }
    _NAMES = {
        "compare.diagnosis": "Diagnosis diagnose",
        "core.saving": "load",
        "core.sites": "Sites",
        "drawing": "draw draw_prior",
        "dynamics": "DivergenceWarning rollout",
        "features": "Features",
        "fitting": "FitWarning OutcomesLeftOut Summary approximate fit summary",
        "fitting.evidence": "LeaveOneOut leave_one_out log_marginal_likelihood",
        "models": "Batch Ensemble ExactGP LatentGP Outputs SelectedOutputs SparseGP",
        "models.libraries": "describe",
        "models.streamed": "StreamedGP",
        "paths": "AbstractFunctions AbstractPaths BatchPaths Composition Coordinates EnsemblePaths LinearCombination "
        "Mapped OutputPaths PartialDerivatives Paths PointwiseProduct PosteriorMean SelectedPaths Selection "
        "SpreadWarning Stack stack",
        "paths.matheron_rule": "matheron weight_space_update",
        "solvers": "JitterWarning",
        "thompson": "Minima maximize minimize",
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
    _PUBLIC = sorted([*_MODULES, *_HOMES])
    globals()["__all__"] = _PUBLIC

    def __getattr__(name: str) -> object:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOMES:
            value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        elif name in _MODULES:
            value = import_module(f".{_MODULES[name]}", __name__)
        elif name.startswith("_") or find_spec(f".{name}", __name__) is None:
            raise AttributeError(f"module 'matheron' has no attribute {name!r}")
        else:  # a package of the library that is not public
            value = import_module(f".{name}", __name__)
        globals()[name] = value  # so that this function is asked once
        return value

    # Classes that users are given and do not call: results, functions made of functions, and warnings. They can be
    # imported and are in the reference; dir() leaves them out, so that it shows what users call.
    _UNLISTED = (
        "AbstractFunctions AbstractPaths BatchPaths Composition Diagnosis DivergenceWarning EnsemblePaths FitWarning "
        "JitterWarning LeaveOneOut LinearCombination Mapped Minima OutcomesLeftOut OutputPaths PartialDerivatives "
        "Paths PointwiseProduct PosteriorMean SelectedOutputs SelectedPaths Selection SpreadWarning Stack Summary "
        "weight_space_update"
    ).split()

    def __dir__() -> list[str]:
        return sorted({*_PUBLIC, "__version__"}.difference(_UNLISTED))
