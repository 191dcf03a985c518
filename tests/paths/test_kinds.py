"""Every kind of paths keeps one contract: the battery of standard.py. A batch of models does so member by member."""

from typing import Any

import pytest
import torch

import matheron
from examples import gen, paths_of, rand, randn
from examples import model as example
from matheron import AbstractPaths, BatchPaths, Ensemble, Outputs, SelectedOutputs, observe
from matheron.compare.samplers import weight_space
from matheron.paths import has_domain, shares_work
from standard import assert_paths, close

WHERE = (-0.1, 2.0)  # the battery's points, and more
DRAW: dict[str, Any] = dict(num_features=24, paths_per_basis=2)


def _draw(model) -> AbstractPaths:
    return matheron.draw(model, 5, generator=gen(7), **DRAW)  # type: ignore[arg-type]


KINDS = {
    "paths": lambda: paths_of("exact"),
    "paths of a prior": lambda: paths_of("prior"),
    "paths with transforms": lambda: paths_of("exact, transforms"),
    "paths of coupled outputs": lambda: paths_of("exact, coupled"),
    "paths of a sparse model": lambda: paths_of("sparse"),
    "paths on a lattice": lambda: matheron.draw(example("exact"), 5, domain=WHERE, seed=0),
    "paths given data on a lattice": lambda: matheron.draw(
        example("exact"), 5, domain=WHERE, solver="lattice", tolerance=1e-2, seed=0
    ),
    "outputs": lambda: _draw(Outputs([example("exact"), example("exact, coupled"), example("sparse")])),
    "one output": lambda: _draw(Outputs([example("exact")])),
    "an ensemble": lambda: _draw(Ensemble([example("exact"), example("exact, transforms"), example("sparse")])),
    "an ensemble of a path each": lambda: _draw(Ensemble([example("exact")] * 5)),
    "an ensemble of coupled outputs": lambda: _draw(Ensemble([example("exact, coupled"), example("sparse, coupled")])),
    "outputs of ensembles": lambda: _draw(Outputs([Ensemble([example("exact"), example("sparse")]), example("exact")])),
    "selected outputs": lambda: _draw(SelectedOutputs(example("exact, coupled"), [1, 0])),
    "one selected output": lambda: _draw(SelectedOutputs(example("exact, coupled"), [1])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_paths_keeps_the_contract(kind, tmp_path):
    assert_paths(KINDS[kind](), tmp_path)


def test_what_applications_ask_of_paths_is_asked_of_all_their_parts():
    free = example("exact")
    lattice: dict[str, Any] = dict(domain=WHERE, seed=0)
    on_lattice = matheron.draw(free, 2, **lattice)
    assert has_domain(on_lattice) and not has_domain(KINDS["an ensemble"]())
    assert has_domain(matheron.draw(Outputs([free, free]), 2, **lattice))
    prior = matheron.draw_prior(free.kernel, 2, input_dim=2, **lattice)
    assert not shares_work(prior) and shares_work(KINDS["paths"]()) and shares_work(on_lattice)  # it has centres, too


def test_paths_of_a_linear_model_keep_it_but_take_no_data(tmp_path):
    paths = weight_space(example("exact"), 5, num_features=24, paths_per_basis=2, generator=gen(7))
    assert_paths(paths, tmp_path, takes_data=False)


def test_a_kind_that_leaves_a_member_out_cannot_be_made():
    class Half(AbstractPaths):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


# A batch of models.


@pytest.fixture
def batch() -> BatchPaths:
    models = [example(name) for name in ("exact", "exact, transforms", "sparse")]
    return matheron.draw(matheron.Batch(models * 2, [2, 3]), 5, generator=gen(7), **DRAW)


def stacked(batch: BatchPaths, answers) -> torch.Tensor:
    return torch.stack(list(answers)).unflatten(0, batch.batch_shape)


def test_a_batch_answers_what_its_members_answer(batch, tmp_path):
    x, of = rand(4, 2), torch.tensor([4, 0, 0, 2])
    close(batch(x), stacked(batch, (m(x) for m in batch.members)))
    close(batch.mean(x), stacked(batch, (m.mean(x) for m in batch.members)))
    slopes = observe.gradient(x)
    close(batch.at(slopes), stacked(batch, (m.at(slopes) for m in batch.members)))
    axes = [x[:, 0], x[:2, 1]]
    close(batch.on_grid(axes), stacked(batch, (m.on_grid(axes) for m in batch.members)))
    for i in range(2):
        close(batch.value_and_grad(x)[i], stacked(batch, (m.value_and_grad(x)[i] for m in batch.members)))
        each = stacked(batch, (m.value_and_grad(x, of=of)[i] for m in batch.members))
        close(batch.value_and_grad(x, of=of)[i], each)
    own = rand(2, 3, 4, 2)
    each = (m.value_and_grad(p, of=of)[0] for m, p in zip(batch.members, own.flatten(0, 1), strict=True))
    close(batch.value_and_grad(own, of=of)[0], stacked(batch, each))
    batch.save(tmp_path / "batch.safetensors")
    close(matheron.load(tmp_path / "batch.safetensors")(x), batch(x))
    close(batch[[1, 3]](x), batch(x)[:, :, [1, 3]])


@pytest.mark.parametrize("noise", [0.0, rand(4), rand(2, 3), rand(2, 3, 4)], ids=lambda n: str(getattr(n, "shape", n)))
def test_a_batch_takes_targets_and_noise_with_its_axes_or_without(batch, noise):
    x = rand(4, 2)
    every = noise.expand(2, 3).flatten() if getattr(noise, "ndim", 0) == 2 else [noise] * 6
    every = noise.flatten(0, 1) if getattr(noise, "ndim", 0) == 3 else every
    for y in (randn(4), randn(5, 4), randn(2, 3, 4), randn(2, 3, 5, 4)):
        ys = y.flatten(0, 1) if y.ndim > 2 else [y] * 6
        given = batch.condition_on(x, y, noise=noise, generator=gen())
        g = gen()
        each = [
            member.condition_on(x, own, noise=n, generator=g)
            for member, own, n in zip(batch.members, ys, every, strict=True)
        ]
        close(given(x), stacked(batch, (m(x) for m in each)))


def test_applications_refuse_a_batch_and_say_what_to_do(batch):
    said = r"expected paths of one model, got a batch of 6 models; ask each of paths.members"
    with pytest.raises(TypeError, match="paths: " + said):
        matheron.minimize(batch, [[0.0, 0.0], [1.0, 1.0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="paths: " + said):
        matheron.maximize(batch, [[0.0, 0.0], [1.0, 1.0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="drift: " + said):
        matheron.rollout(batch, [0.0, 0.0], steps=2, dt=0.1)
    with pytest.raises(TypeError, match="paths: " + said):
        matheron.diagnose(batch, example("exact"), rand(4, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"paths: expected paths, as matheron.draw gives them, got function"):
        matheron.minimize(lambda x: x, [[0.0, 0.0], [1.0, 1.0]])  # type: ignore[arg-type]
