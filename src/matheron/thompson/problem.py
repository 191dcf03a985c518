"""Drawn problems: functions for the objectives and for the constraints, and a single number to be minimised.

A constraint is met where it is zero or below. Points that meet all constraints are ordered by the objective. The others
come after these, ordered by their violation. Descents follow an augmented Lagrangian (Nocedal and Wright, section
17.4). Its constraints are moved inwards by a small margin, so that the point it converges to meets them in floating
point too.

Several objectives are scalarised with random weights: the minimiser is a point of the drawn functions' own Pareto
front, and weights drawn uniformly spread the points over all of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ..core.boxes import Sobol
from ..core.checks import ArrayLike, as_array
from ..paths import AbstractFunctions, AbstractPaths, PosteriorMean, Stack
from .quasi_newton import ENDINGS, LIMIT, Optimum, minimize_in_unit_box

# Descents aim at points this far inside the constraints, in standard deviations of the constraints. They end at half of
# this distance.
MARGIN = {torch.float64: 1e-6, torch.float32: 1e-4}
INFEASIBLE, OF_THE_MESH = "infeasible: least violation", "a point of the mesh"

# The constraints that `minimize` takes: a function of points, the number of an output (or with its limit), or drawn
# functions.
Constraint: TypeAlias = "Callable[[Tensor], ArrayLike] | int | Mapping[int, float] | AbstractFunctions"
Constraints: TypeAlias = "Constraint | Sequence[Constraint] | None"


class Known:
    """A function of points, the same for all paths: `[n, d] -> [n]`, or `[n, c]` for several constraints at once.

    Gradients are by autograd where the function is made of torch's operations, and else by central differences.
    """

    num_paths = 1

    def __init__(self, function: Callable[[Tensor], ArrayLike], box: Tensor) -> None:
        self.function, self.step = function, 1e-6 * (box[1] - box[0])  # [d]
        n, d = box.shape[1] + 1, box.shape[1]  # one more than d, so that [n] and [d] differ
        x = torch.lerp(box[0], box[1], torch.linspace(0.1, 0.9, n, dtype=box.dtype, device=box.device)[:, None])
        try:
            returned = function(x.clone().requires_grad_())
            self.differentiable = isinstance(returned, Tensor) and returned.requires_grad
        except Exception:  # for example, NumPy takes no tensor with a graph; any other error is raised again below
            self.differentiable = False
        y = as_array(function(x.clone()))
        if y.ndim not in (1, 2) or len(y) != n:
            raise ValueError(
                f"constraints: expected a function of points [n, {d}] that returns [n], zero or below where they are "
                f"feasible, got {list(y.shape)} for [{n}, {d}]; the first coordinate of all points is x[..., 0]"
            )
        self.num_outputs = 1 if y.ndim == 1 else y.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, d] -> [1, n, c]`."""
        return as_array(self.function(x.detach().clone())).to(x).reshape(1, len(x), self.num_outputs)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[n, d] -> [1, n, c], [1, n, c, d]`."""
        if not self.differentiable:
            steps = torch.diag(self.step.to(x))  # [d, d]
            sides = [self((x + sign * steps[:, None]).flatten(0, 1))[0] for sign in (1.0, -1.0)]  # [d n, c]
            slopes = (sides[0] - sides[1]).unflatten(0, (x.shape[1], len(x))) / (2 * self.step.to(x))[:, None, None]
            return self(x), slopes.permute(1, 2, 0)[None]
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            y = cast(Tensor, self.function(x)).reshape(len(x), self.num_outputs)
            columns = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in y.mT]
        return y.detach()[None], torch.stack(columns, dim=1)[None]


Functions: TypeAlias = AbstractFunctions | Known


class Output(NamedTuple):
    """One output of drawn functions, less a limit."""

    functions: Functions
    column: int = 0
    limit: float = 0.0


class At(NamedTuple):
    """Drawn functions at n points: objectives F `[r, n, m]`, and by how much constraints are violated `[r, n]`."""

    F: Tensor
    violation: Tensor


class Found(NamedTuple):
    """The minimiser of each row's problem: x `[r, d]`, objectives F `[r, m]`, constraints C `[r, c]`, endings, and the
    number of evaluations with gradients."""

    x: Tensor
    F: Tensor
    C: Tensor
    ending: list[str]
    num_evaluations: int


@dataclass(frozen=True)
class Problem:
    """r problems, each of a path `of` `[r]` of the functions that have several, with weights of its own.

    `scales` are the constraints', `lowest` and `span` put objectives on one scale.
    """

    objectives: Sequence[Output]
    constraints: Sequence[Output]
    of: Tensor  # [r]
    weights: Tensor  # [r, m]
    scales: Tensor  # [r, c]
    lowest: Tensor  # [r, m]
    span: Tensor  # [r, m]

    @staticmethod
    def unscaled(objectives: Sequence[Output], constraints: Sequence[Output], of: Tensor, weights: Tensor) -> Problem:
        scales = weights.new_ones(len(of), len(constraints))
        return Problem(
            objectives, constraints, of, weights, scales, torch.zeros_like(weights), torch.ones_like(weights)
        )

    def rows(self, which: Tensor) -> Problem:
        """Some of the problems."""
        tensors = (t[which] for t in (self.of, self.weights, self.scales, self.lowest, self.span))
        return Problem(self.objectives, self.constraints, *tensors)

    def with_weights(self, weights: Tensor) -> Problem:
        """The first problem once for each of the weights `[w, m]`."""
        return replace(self.rows(self.of.new_zeros(len(weights))), weights=weights)

    def scaled(self, at: At) -> Problem:
        """The problem with its objectives on the scale of their own front, as far as some points show it.

        That is from an objective's lowest value to its highest at the other objectives' best points.
        """
        usable = (at.violation <= 0) | ~(at.violation <= 0).any(1, keepdim=True)  # [r, n]
        F = torch.where((usable & at.F.isfinite().all(-1))[..., None], at.F, torch.inf)  # [r, n, m]
        best = F.argmin(1)  # [r, m]
        lowest = F.amin(1)
        span = F.gather(1, best[..., None].expand(-1, -1, F.shape[-1])).amax(1) - lowest
        return replace(self, lowest=lowest, span=torch.where(span > 0, span, 1.0))

    def of_means(self) -> Problem:
        """The problem with its objectives' posterior means in place of drawn functions."""
        drawn = {id(f.functions): f.functions for f in self.objectives}
        means = {name: f if isinstance(f, PosteriorMean | Known) else PosteriorMean(f) for name, f in drawn.items()}
        means = [f._replace(functions=means[id(f.functions)]) for f in self.objectives]
        return replace(self, objectives=means)

    def units(self, F: Tensor) -> Tensor:
        """Values `[n, m]` on the first problem's scale."""
        return (F - self.lowest[0]) / self.span[0]

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Objectives `[r, n, m]` and constraints `[r, n, c]` at points `[n, d]`, or at own points `[r, n, d]`."""
        outputs, r = [*self.objectives, *self.constraints], len(self.of)
        functions = {id(o.functions): o.functions for o in outputs}.values()
        with torch.no_grad():
            if x.ndim == 2 or all(f.num_paths == 1 for f in functions):  # all functions have the same points
                known = {id(f): f(x.flatten(0, -2)) for f in functions}  # [s, n] or [s, n, t]
                columns = [_column(known[id(o.functions)], o) for o in outputs]  # [s, n]
                columns = [c.expand(r, -1) if len(c) == 1 else c[self.of] for c in columns]
                both = torch.stack(columns, dim=-1)  # [r, n, m + c]
                if x.ndim == 3:
                    rows = torch.arange(r, device=x.device)
                    both = both.unflatten(1, x.shape[:2])[rows, rows]
            else:
                rows = torch.arange(r, device=x.device).repeat_interleave(x.shape[1])
                both = self._slopes(x.flatten(0, 1), rows)[0].unflatten(0, x.shape[:2])
        return both[..., : len(self.objectives)], both[..., len(self.objectives) :]

    def at(self, x: Tensor) -> At:
        """The drawn functions at points `[n, d]` or `[r, n, d]`."""
        F, C = self.raw(x)
        return At(F, self.violation(C))

    def violation(self, C: Tensor) -> Tensor:
        """The sum `[r, n]` of what constraints `[r, n, c]` are above zero, each in its own scale."""
        return (C / self.scales[:, None]).clamp_min(0).sum(-1).nan_to_num(nan=torch.inf)

    def objective(self, F: Tensor) -> Tensor:
        """The number to be minimised `[r, n]`, of objectives `[r, n, m]`."""
        return _scalarised((F - self.lowest[:, None]) / self.span[:, None], self.weights[:, None])

    def rank(self, at: At) -> Tensor:
        """The rank `[r, n]` by which points are ordered: feasible ones by the objective, the others after them by
        violation."""
        value = self.objective(at.F)
        value = torch.where(value.isnan(), torch.inf, value)
        finite = torch.where(value.isinf(), 0.0, value)
        highest = finite.amax(1, keepdim=True)
        last = highest - finite.amin(1, keepdim=True) + 1
        return torch.where(at.violation > 0, highest + last + at.violation, value)

    def rank_at(self, x: Tensor) -> Tensor:
        """The rank `[r, n]` of points x `[n, d]`, on the scale that the functions have there."""
        F, C = self.raw(x)
        problem = _on_scale(self, F, C)
        return problem.rank(At(F, problem.violation(C)))

    def value_and_grad(self, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of problems `row` `[p]` at points `[p, d]`: the objective `[p]`, its gradient `[p, d]`, the constraints
        `[p, c]` in their scales, and their gradients `[p, c, d]`."""
        m = len(self.objectives)
        both, slopes = self._slopes(x, row)  # [p, m + c], [p, m + c, d]
        F = both[:, :m].clone().requires_grad_()
        with torch.enable_grad():
            value = _scalarised((F - self.lowest[row]) / self.span[row], self.weights[row])
            (slope,) = torch.autograd.grad(value.sum(), F)  # [p, m]
        gradient = (slope[..., None] * slopes[:, :m]).sum(1)
        scales = self.scales[row]
        return value.detach(), gradient, both[:, m:] / scales, slopes[:, m:] / scales[..., None]

    def _slopes(self, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """All outputs at points x `[p, d]` of problems `row` `[p]`: `[p, m + c]`, `[p, m + c, d]`."""
        outputs, known = [*self.objectives, *self.constraints], {}
        for f in {id(o.functions): o.functions for o in outputs}.values():
            if f.num_paths == 1:
                known[id(f)] = tuple(each[0] for each in f.value_and_grad(x))
            else:
                known[id(f)] = cast(AbstractFunctions, f).value_and_grad(x, of=self.of[row])
        values = torch.stack([_column(known[id(o.functions)][0], o, 1) for o in outputs], dim=1)
        slopes = [g if (g := known[id(o.functions)][1]).ndim == 2 else g[:, o.column] for o in outputs]
        return values, torch.stack(slopes, dim=1)


def _column(values: Tensor, output: Output, ndim: int = 2) -> Tensor:
    """An output of values `[s, n]` or `[s, n, t]` (`[p]` or `[p, t]` with ndim 1), less its limit."""
    column = values if values.ndim == ndim else values[..., output.column]
    return column - output.limit if output.limit else column


def _scalarised(z: Tensor, weights: Tensor, share: float = 0.05, smooth: float = 0.02) -> Tensor:
    """One number of objectives z `[..., m]`, on a common scale: the augmented Chebyshev scalarisation
    max_j w_j z_j + share sum_j w_j z_j, its maximum smoothed over `smooth`."""
    if z.shape[-1] == 1:
        return z[..., 0]
    weighted = weights * z
    return smooth * torch.logsumexp(weighted / smooth, -1) + share * weighted.sum(-1)


def simplex(m: int, generator: torch.Generator) -> Tensor:
    """Weights `[m]`, uniform among those that are positive and sum to one."""
    exponential = (
        -torch.rand(m, generator=generator, device=generator.device, dtype=torch.float64).clamp_min(1e-300).log()
    )
    return exponential / exponential.sum()


def formulated(
    paths: AbstractFunctions,
    constraints: Constraints,
    box: Tensor,
    altered: Callable[[AbstractPaths], AbstractFunctions] | None = None,
) -> tuple[list[Output], list[Output]]:
    """Objectives and constraints: outputs of the paths that are no constraints are objectives, `altered` where that is
    given."""
    own, found, taken = _outputs(paths), [], set()
    t = len(own)

    def output(number: object, limit: float) -> None:
        column = operator.index(cast(int, number))
        if not 0 <= column < t:
            raise ValueError(f"constraints: expected outputs 0 to {t - 1} of these functions, got {column}")
        taken.add(column)
        found.append(own[column]._replace(limit=float(limit)))

    for item in listed(constraints):
        if isinstance(item, Mapping):
            for number, limit in item.items():
                output(number, limit)
        elif isinstance(item, AbstractFunctions):
            if item.num_paths not in (1, paths.num_paths) or item.input_dim != paths.input_dim:
                raise ValueError(
                    f"constraints: expected {paths.num_paths} paths in {paths.input_dim} dimensions, one for each path "
                    f"that is minimised, got {item.num_paths} in {item.input_dim}"
                )
            found += _outputs(item)
        elif callable(item):
            known = Known(item, box)
            found += [Output(known, column) for column in range(known.num_outputs)]
        elif hasattr(item, "__index__") and not isinstance(item, bool):
            output(item, 0.0)
        else:
            raise TypeError(
                "constraints: expected functions of points, numbers of outputs, or drawn functions, each zero or below "
                f"where it is met, got {type(item).__name__}"
            )
    objectives = [output for column, output in enumerate(own) if column not in taken]
    if altered is not None:
        made = {id(o.functions): altered(cast(AbstractPaths, o.functions)) for o in objectives}
        objectives = [o._replace(functions=made[id(o.functions)]) for o in objectives]
    if not objectives:
        raise ValueError(f"constraints: expected an output that is none, to be minimised, got all {t} of them")
    return objectives, found


def _outputs(paths: AbstractFunctions) -> list[Output]:
    """Each output; those of independent models each of its own model's paths."""
    if isinstance(paths, Stack):
        return [output for each in paths.functions for output in _outputs(each)]
    return [Output(paths, column) for column in range(paths.num_outputs)]


def listed(constraints: Constraints) -> list[Constraint]:
    """Constraints one by one, of one or several."""
    if constraints is None:
        return []
    alone = callable(constraints) or isinstance(constraints, Mapping) or not isinstance(constraints, Iterable)
    return [constraints] if alone else list(constraints)  # type: ignore[list-item]


def solve(
    problem: Problem,
    blocks: Iterable[Tensor],
    low: Tensor,
    span: Tensor,
    *,
    num_starts: int,
    max_iterations: int = 200,
    on_iteration: Callable[[int], None] | None = None,
) -> Found:
    """Each problem's minimiser, by searches that start from the best points of a mesh.

    The mesh comes in blocks of points of the unit cube, `[b, d]` for all problems or `[r, b, d]` for each. The cube
    stands for a box from `low` with sides `span`, both `[1, d]` or `[r, d]`.
    """
    problem, starts = _screened(problem, blocks, low, span, num_starts)  # [r, k, d]
    found = _descended(problem, starts, low, span, max_iterations, on_iteration)
    left = (problem.violation(found.C[:, None])[:, 0] > 0).nonzero()[:, 0]
    if not len(left):
        return found
    # No descent has met all constraints. A search for the least violation can find points that meet them, or come
    # nearest to it.
    some, r = problem.rows(left), len(problem.of)
    at = (low.expand(r, -1)[left], span.expand(r, -1)[left])
    nearest = _descended(some, starts[left], *at, max_iterations, on_iteration, violation_alone=True)
    inner = ((nearest.x - at[0]) / at[1]).clamp(0, 1)[:, None]  # [l, 1, d]
    # improves the objective if the point is feasible
    again = _descended(some, inner, *at, max_iterations, on_iteration)
    ending = list(found.ending)
    for i, said in zip(left.tolist(), again.ending, strict=True):
        ending[i] = said
    x, F, C = (each.index_copy(0, left, new) for each, new in zip(found[:3], again[:3], strict=True))
    return Found(x, F, C, ending, sum(each.num_evaluations for each in (found, nearest, again)))


def _screened(
    problem: Problem, blocks: Iterable[Tensor], low: Tensor, span: Tensor, num_starts: int
) -> tuple[Problem, Tensor]:
    """The problem on the scale of its functions at the first block, and the points `[r, k, d]` to descend from."""
    r, kept, scaled = len(problem.of), [], False
    for u in blocks:
        shared = u.ndim == 2 and len(low) == 1
        x = torch.addcmul(low[0], u, span[0]) if shared else low[:, None] + span[:, None] * u
        F, C = problem.raw(x)
        if not scaled:
            problem, scaled = _on_scale(problem, F, C), True
        index = _promising(problem, F, C, num_starts)  # [r, k]
        kept.append([_taken(t, index) for t in (u.expand(r, -1, -1), F, C)])
    u, F, C = (torch.cat(parts, dim=1) for parts in zip(*kept, strict=True))
    return problem, _taken(u, _promising(problem, F, C, num_starts))


def _promising(problem: Problem, F: Tensor, C: Tensor, count: int, penalty: float = 100.0) -> Tensor:
    """Which points `[r, k]` to descend from, given objectives `[r, n, m]` and constraints `[r, n, c]`: the best.

    Where a mesh has few feasible points, the minimiser may be far from all of them. So with constraints, half of the
    points are the best by the objective plus a penalty on squared violations. Both are in standard deviations: those of
    the objectives and of the constraints."""
    violation = problem.violation(C)
    keys = [problem.rank(At(F, violation))]
    if problem.constraints and count > 1:
        keys.append((problem.objective(F) + penalty * violation.square()).nan_to_num(nan=torch.inf))
    sizes = [count - count // 2, count // 2] if len(keys) > 1 else [count]
    each = zip(keys, sizes, strict=True)
    return torch.cat([key.topk(min(k, key.shape[1]), largest=False).indices for key, k in each], dim=1)


def _taken(points: Tensor, index: Tensor) -> Tensor:
    """Points `[r, n, d]` at `[r, k]`."""
    return points.gather(1, index[..., None].expand(-1, -1, points.shape[-1]))


def _on_scale(problem: Problem, F: Tensor, C: Tensor) -> Problem:
    """The problem with its functions on the scale that they have at some points."""
    scales = C.nan_to_num(0.0, 0.0, 0.0).std(1, correction=0) if problem.constraints else problem.scales
    problem = replace(problem, scales=torch.where(scales > 0, scales, 1.0))
    if len(problem.objectives) > 1:
        return problem.scaled(At(F, problem.violation(C)))
    F = torch.where(F.isnan(), torch.inf, F)
    lowest = F.amin(1)  # [r, 1]
    span = F.median(1).values - lowest
    usable = (span > 0) & span.isfinite()
    return replace(problem, lowest=lowest.nan_to_num(0, 0, 0), span=torch.where(usable, span, 1.0))


def _descended(
    problem: Problem,
    starts: Tensor,
    low: Tensor,
    span: Tensor,
    max_iterations: int,
    on_iteration: Callable[[int], None] | None,
    violation_alone: bool = False,
) -> Found:
    """The best of what descents from each problem's starts `[r, k, d]` reach, and of the starts."""
    r, k, _ = starts.shape
    low, span, count = low.expand(r, -1), span.expand(r, -1), 0

    def functions(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        nonlocal count
        count += len(index)
        row = index // k
        value, gradient, C, dC = problem.value_and_grad(torch.addcmul(low[row], u, span[row]), row)
        return value, gradient * span[row], C, dC * span[row, None]

    margin = MARGIN[starts.dtype] if problem.constraints else 0.0

    def violation(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        _, _, C, dC = functions(index, u)
        above = (C + margin).clamp_min(0)  # [p, c]
        return above.square().sum(1), 2 * (above[..., None] * dC).sum(1)

    u = starts.flatten(0, 1)
    if violation_alone:
        optimum = minimize_in_unit_box(violation, u, max_iterations=max_iterations, on_iteration=on_iteration)
    else:
        c = len(problem.constraints)
        optimum = descend(functions, u, c, margin, max_iterations=max_iterations, on_iteration=on_iteration)
    pool = torch.cat([optimum.x.unflatten(0, (r, k)), starts], dim=1)  # [r, 2 k, d]
    x = torch.addcmul(low[:, None], pool, span[:, None])
    x = torch.minimum(torch.maximum(x, low[:, None]), (low + span)[:, None])
    F, C = problem.raw(x)
    best = problem.rank(At(F, problem.violation(C))).argmin(1)  # [r]
    x, F, C = (_taken(t, best[:, None])[:, 0] for t in (x, F, C))
    said = optimum.ending.unflatten(0, (r, k)).tolist()
    endings = [ENDINGS[own[i]] if i < k else OF_THE_MESH for own, i in zip(said, best.tolist(), strict=True)]
    violated = problem.violation(C[:, None])[:, 0] > 0
    endings = [INFEASIBLE if bad else end for bad, end in zip(violated.tolist(), endings, strict=True)]
    return Found(x, F, C, endings, count)


# An objective with constraints, of problems `index [p]` at their points `[p, d]`: values `[p]`, gradients `[p, d]`,
# constraints `[p, c]`, and their gradients `[p, c, d]`.
WithConstraints: TypeAlias = "Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]"


def descend(
    functions: WithConstraints,
    u: Tensor,
    num_constraints: int,
    margin: float,
    *,
    max_iterations: int = 200,
    on_iteration: Callable[[int], None] | None = None,
    first_penalty: float = 10.0,
    growth: float = 10.0,
    largest_penalty: float = 1e8,
    num_updates: int = 15,
) -> Optimum:
    """Minimise p problems over the unit cube from the points u `[p, d]`, where all constraints are below -margin.

    The augmented Lagrangian of multipliers l and a penalty rho is f + sum_j ((l_j + rho c_j)_+^2 - l_j^2) / (2 rho). It
    is minimised again and again; after each time l_j becomes (l_j + rho c_j)_+. A problem has ended when its
    constraints are met to half of the margin, those with a multiplier above zero as equalities.

    Args:
        functions, u, num_constraints, margin: the problems, their points, and how far inside constraints these are met.
        max_iterations, on_iteration: of each minimisation, as for `minimize_in_unit_box`.
        first_penalty: rho at first.
        growth: by how much rho grows where a violation does not fall to a quarter.
        largest_penalty: how large rho may become.
        num_updates: how many times multipliers are updated.
    """
    settings = {"max_iterations": max_iterations, "on_iteration": on_iteration}
    if not num_constraints:
        return minimize_in_unit_box(lambda index, u: functions(index, u)[:2], u, **settings)
    p = len(u)
    left = torch.arange(p, device=u.device)
    multipliers, penalty = u.new_zeros(p, num_constraints), u.new_full((p, 1), first_penalty)
    last = u.new_full((p,), torch.inf)
    optimum = Optimum(u.clamp(0, 1), u.new_zeros(p), torch.full_like(left, LIMIT), torch.zeros_like(left))

    def lagrangian(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        index = left[index]
        value, gradient, C, dC = functions(index, u)
        own, rho = multipliers[index], penalty[index]
        pull = (own + rho * (C + margin)).clamp_min(0)  # [p, c]
        value = value + ((pull.square() - own.square()) / (2 * rho)).sum(1)
        return value, gradient + (pull[..., None] * dC).sum(1)

    for _ in range(num_updates):
        found = minimize_in_unit_box(lagrangian, optimum.x[left], **settings)
        optimum.x[left], optimum.ending[left] = found.x, found.ending
        optimum.iterations[left] += found.iterations
        value, _, C, _ = functions(left, found.x)
        optimum.value[left] = value
        own, rho, C = multipliers[left], penalty[left], C + margin
        residual = torch.maximum(C, -own / rho).abs().amax(1)  # [p]
        multipliers[left] = (own + rho * C).clamp_min(0)
        grows = (residual > 0.25 * last[left])[:, None]
        penalty[left] = torch.where(grows, (growth * rho).clamp_max(largest_penalty), rho)
        last[left] = residual
        left = left[residual > margin / 2]  # this also drops NaN
        if not len(left):
            break
    return optimum


# Pareto fronts of points to be minimised in every column, and the hypervolume that a point would add to one.


def nondominated(F: Tensor) -> Tensor:
    """Which rows of F `[n, m]` are not dominated by another row, `[n]`; of equal rows, one is kept.

    >>> import torch
    >>> nondominated(torch.tensor([[0.0, 2.0], [1.0, 1.0], [1.0, 3.0], [0.0, 2.0]]))
    tensor([ True,  True, False, False])
    """
    keep = torch.zeros(len(F), dtype=torch.bool, device=F.device)
    left = torch.arange(len(F), device=F.device)
    while len(left):
        lowest = left[F[left].sum(1).argmin()]  # no remaining row dominates the one with the lowest sum
        keep[lowest] = True
        left = left[(F[left] < F[lowest]).any(1)]
    return keep


def improvements(F: Tensor, front: Tensor, reference: Tensor, num_points: int = 1 << 13) -> Tensor:
    """The hypervolume below `reference` `[m]` that each row of F `[p, m]` would add to that of `front` `[r, m]`: `[p]`.

    The result is exact for two columns. For more it is estimated on `num_points` points of a Sobol sequence, to about
    a thousandth of the box.

    >>> import torch
    >>> front, reference = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([2.0, 2.0])
    >>> improvements(torch.tensor([[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]), front, reference)
    tensor([0.2500, 0.0000, 1.0000])
    """
    front = front[(front < reference).all(1)]
    front = front[nondominated(front)]
    if F.shape[1] == 2:
        return _in_the_plane(F, front, reference)
    lowest = torch.cat([F, front]).amin(0)
    side = (reference - lowest).clamp_min(0)
    points = lowest + side * Sobol(F.shape[1], seed=0).next(num_points).to(F)
    free = points[~(front[:, None] <= points).all(-1).any(0)]  # the points that the front does not dominate yet
    return (F[:, None] <= free).all(-1).sum(1).to(F) / num_points * side.prod()


def _in_the_plane(F: Tensor, front: Tensor, reference: Tensor) -> Tensor:
    """A sum over the steps of the front: strips between its points, each with the height that is still free."""
    front = front[front[:, 0].argsort()]  # the second column then decreases
    left = torch.cat([torch.full_like(reference[:1], -torch.inf), front[:, 0]])  # the left ends of the strips, [r + 1]
    right = torch.cat([front[:, 0], reference[:1]])
    top = torch.cat([reference[1:], front[:, 1]])
    width = (right - torch.maximum(left, F[:, :1])).clamp_min(0)  # [p, r + 1]
    height = (top - F[:, 1:]).clamp_min(0)
    return torch.where(width > 0, width * height, 0.0).sum(1)
