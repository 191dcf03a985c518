"""Adapters turn models of other Gaussian process libraries into snapshots: `ExactGP`, `SparseGP`, or several of these.

No other part of matheron imports those libraries or knows their types. Each adapter is a module with
`describe(model)` and `translate(kernel, input_dim)`, which are functools.singledispatch functions. An adapter with
more such functions lists them by noun in `REGISTRIES`. The classes that are registered are those that are supported,
and a test checks `docs/models.md` against them.
"""

from __future__ import annotations

from importlib import import_module

LIBRARIES = ("gpytorch", "botorch", "sklearn", "gpflow")


def supported(library: str) -> dict[str, list[str]]:
    """Return the names of the classes that an adapter understands, by noun. The library must be installed.

    >>> from matheron.adapters import supported
    >>> "RBFKernel" in supported("gpytorch")["kernels"]
    True
    """
    adapter = import_module(f"{__name__}.{library}")
    registries = getattr(adapter, "REGISTRIES", None) or {"models": adapter.describe, "kernels": adapter.translate}
    return {
        noun: sorted({kind.__name__ for kind in function.registry if kind.__module__.split(".")[0] == library})
        for noun, function in registries.items()
    }
