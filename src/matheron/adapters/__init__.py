"""Models of Gaussian process libraries as snapshots: the only place that imports them or knows their types.

Each adapter is a module with `describe(model)` and `translate(kernel, input_dim)`, and with `REGISTRIES`, its
functools.singledispatch functions by noun, where there are more than these two. What they know is what is supported:
`docs/models.md` is checked against them.
"""

from __future__ import annotations

from importlib import import_module

LIBRARIES = ("gpytorch", "botorch", "sklearn", "gpflow")


def supported(library: str) -> dict[str, list[str]]:
    """What an adapter understands, by noun: the names of the library's classes. The library must be installed.

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
