"""describe: from a model of a Gaussian process library to a snapshot.

A library is imported when a model of its arrives, by its adapter.
"""

from __future__ import annotations

from importlib import import_module

from .latent import LatentGP
from .several import GP

# The libraries whose models are understood, and the module for each. A model is matched by the package of its class or
# of a base class, in this order.
ADAPTERS = {library: f"matheron.adapters.{library}" for library in ("botorch", "gpytorch", "sklearn", "gpflow")}


def is_model(thing: object) -> bool:
    """Whether something is a model of a library that is known, or a snapshot."""
    packages = {base.__module__.split(".")[0] for base in type(thing).__mro__}
    return isinstance(thing, GP | LatentGP) or not packages.isdisjoint(ADAPTERS)


def describe(model: object, *, detach: bool = True) -> GP:
    """A snapshot of a trained model: `ExactGP`, `SparseGP`, `Outputs`, `Ensemble` or `Batch`.

    Args:
        model: a GPyTorch, BoTorch, scikit-learn or GPflow model, or a snapshot, which is returned as it is; of a
            `LatentGP` the Gaussian process that its functions are drawn from.
        detach: False leaves the snapshot's tensors in the graph of the model's parameters.

    >>> import matheron
    >>> from matheron import kernels
    >>> matheron.describe(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[1.0], noise=0.1))
    ExactGP(RBF(1.0), 1 observation in 1 dimension)
    """
    if isinstance(model, GP):
        return model
    if isinstance(model, LatentGP):
        return model.gaussian
    packages = [base.__module__.split(".")[0] for base in type(model).__mro__]
    for package, adapter in ADAPTERS.items():
        if package in packages:
            gp = import_module(adapter).describe(model)
            return gp.owned() if detach else gp
    raise TypeError(
        f"model: expected a model of {', '.join(ADAPTERS)}, or a matheron.ExactGP or SparseGP, got "
        f"{type(model).__module__}.{type(model).__name__}; describe it by hand with one of the last two"
    )
