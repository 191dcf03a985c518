"""A case in a library, ready to be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from cases import Case
from measure import Prepared
from others import LIBRARIES

NUM_CHECKED = 256  # points at which values are checked against the formula


def prepare(case: Case, name: str) -> Prepared:
    """Everything up to the call that is measured: a model, and for all but drawing the paths and points."""
    library, problem = LIBRARIES[name], case.problem
    model, compiles = library.model(problem), getattr(library, "compiles", False)  # for each shape anew
    if case.task == "draw":
        small = problem if compiles else replace(problem, s=1, ell=2)
        library.draw(model, small)  # threads and workspaces are there before we look
        return Prepared(partial(library.draw, model, problem))
    paths = library.draw(model, problem)
    if case.task == "grid":
        axis = torch.linspace(0, 1, case.num_points, dtype=problem.dtype, device=problem.device)
        return Prepared(partial(library.grid, paths, axis))
    own = case.task == "own"
    x = problem.points(*([problem.s] if own else []), case.num_points)
    per_path = case.task in ("own", "each")
    call = {"evaluate": "values", "gradient": "gradient"}.get(case.task, "value_and_grad" if per_path else "")
    method: Callable[..., Any] = getattr(library, call)
    method(paths, x if compiles else x[..., :1, :])
    known = case.headline and hasattr(library, "plainly") and not own
    return Prepared(partial(method, paths, x), partial(error, library, paths, x) if known else None)


def error(library: Any, paths: Any, x: torch.Tensor) -> float:
    """RMS difference of values from the formula in float64, written out without blocks, over the RMS value."""
    some = x[:NUM_CHECKED]
    wanted = library.plainly(paths, some)
    got = library.values(paths, some).double()
    return float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
