"""Functions as plain modules: the same values as the paths, in what torch makes of modules; and what cannot travel."""

import copy

import pytest
import torch

import matheron
from matheron import kernels as k
from matheron import observe, transforms
from matheron.core import Value
from matheron.features import spherical_features

DOUBLE = torch.float64


def points(*shape: int, dtype: torch.dtype = DOUBLE, seed: int = 3) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def model(kernel, d: int = 1, noise: float = 1e-2, n: int = 20, dtype: torch.dtype = DOUBLE, **settings):
    X = points(n, d, seed=1)
    return matheron.ExactGP(kernel, X.to(dtype), torch.sin(5 * X.sum(1)).to(dtype), noise=noise, **settings)


def drawn(kernel, d: int = 1, s: int = 4, num_features: int = 64, **settings):
    return matheron.draw(model(kernel, d, **settings), s, num_features=num_features, seed=0)


def two_outputs(kernel) -> matheron.ExactGP:
    X = points(20, 1, seed=1)
    return matheron.ExactGP(kernel, X, torch.cat([X, X**2], 1), noise=0.01)


COUPLED = k.Coregional(k.RBF(0.3), [[1.0, 0.9], [0.9, 1.0]]) + k.Matern(1.5, 0.5)
KERNELS = {
    "RBF": (k.RBF(0.3), 1),
    "Matern-1/2": (k.Matern(0.5, 0.3), 2),
    "Matern-3/2": (k.Matern(1.5, [0.3, 0.6]), 2),
    "Matern-5/2": (k.Matern(2.5, 0.3), 3),
    "Matern-21/2": (k.Matern(10.5, 0.3), 2),
    "rational quadratic": (k.RationalQuadratic(0.7, 0.3), 2),
    "spherical": (k.Spherical(0.8), 2),
    "periodic": (k.Periodic(0.7, [0.5, 0.8]), 2),
    "RBF times periodic": (k.RBF(0.5) * k.Periodic(0.7, 0.5), 1),
    "cosine": (k.Cosine(0.5) * k.RBF(0.4), 1),
    "spectral mixture": (k.SpectralMixture([1.0, 0.5], [[1.0, 2.0], [0.0, 1.0]], [[0.3, 0.4], [0.5, 0.6]]), 2),
    "linear": (k.Linear([2.0, 0.5]) + k.RBF(0.3), 2),
    "polynomial": (0.5 * k.Polynomial(3, 1.0) + k.RBF(0.3), 2),
    "constant": (k.Constant(2.0) + k.Matern(2.5, 0.2), 2),
    "linear times RBF": (k.Linear(2.0) * k.RBF(0.3), 1),
    "on some coordinates": (k.RBF(0.3).on(0) * k.Matern(1.5, 0.4).on(1) + 0.3 * k.RBF(0.2).on([2, 0]), 3),
    "rotated": (k.Rotated(k.RBF([0.3, 0.1]), 30.0), 2),
    "many dimensions": (k.Matern(2.5, 1.5), 20),
}


def others():
    """Functions of other kinds, by name."""
    smooth, rough = model(k.RBF(0.3)), model(k.Matern(1.5, 0.3))
    sparse = matheron.SparseGP(k.RBF(0.3), points(5, 1), points(5, 1)[:, 0])
    categories = matheron.ExactGP(
        k.Categorical(1.0, 4).on(0) * k.RBF(0.3).on(1), [[0, 0.1], [1, 0.5], [3, 0.9]], [0.0, 1.0, 2.0], noise=0.01
    )
    affine = transforms.Affine([2.0, 0.5], [0.1, -0.3])
    square = transforms.Projected([[2.0, 0.5], [0.3, 0.4]], [0.1, -0.3])
    columns = transforms.Columns([transforms.Affine(2.0), transforms.Affine(0.5, 1.0)], [[1], [0]], 2)
    chain = transforms.Chain([affine, transforms.Inverse(transforms.Masked(affine, [True, False]))])
    means = matheron.means
    stacked = means.Mixed(means.Stacked([means.ConstantMean(1.0), means.LinearMean([2.0], 0.5)]), [[1, 2], [0, 1.0]])
    paths = drawn(k.Matern(2.5, 0.3), s=6)
    ensemble = matheron.draw(matheron.Ensemble([smooth, rough, model(k.RBF(0.1))]), 11, seed=0)
    return {
        "a basis for some paths": matheron.draw(rough, 10, paths_per_basis=4, num_features=64, seed=0),
        "a basis for each": matheron.draw(model(k.Linear() * k.RBF(0.3)), 3, paths_per_basis=1, seed=0),
        "paired features": matheron.draw(rough, 10, paths_per_basis=4, num_features=64, features="sincos", seed=0),
        "a lattice": matheron.draw(rough, 4, domain=(-0.1, 1.1), seed=0),
        "a lattice in two": matheron.draw(model(k.RBF(0.3), 2), 4, domain=([0.0, 0.0], [1.0, 1.0]), seed=0),
        "on a lattice": matheron.draw(smooth, 4, domain=(0.0, 1.0), solver="lattice", seed=0),
        "a prior": matheron.draw_prior(k.RBF(0.3), 3, input_dim=2, seed=0),
        "an algebra": matheron.stack([2 * paths.exp() - paths / 3 + 1, paths * paths.sigmoid()])[..., [1, 0]],
        "layers": paths.compose(paths.tanh()),
        "a constant": matheron.draw_prior(k.Constant(2.0), 3, input_dim=2, seed=0),
        "a sparse model": matheron.draw(sparse, 3, seed=0),
        "categories": matheron.draw(categories, 4, seed=0),
        "a linear mean": drawn(k.RBF(0.3), 2, mean=means.LinearMean([1.0, 2.0], 0.5)),
        "a mixed mean": matheron.draw_prior(COUPLED, 3, input_dim=1, mean=stacked, seed=0),
        "scaled": drawn(k.RBF(0.3), 2, input_transform=affine, output_transform=transforms.Affine(3.0, 10.0)),
        "projected": drawn(k.RBF(0.3), 2, input_transform=square),
        "columns": drawn(k.RBF(0.3), 2, input_transform=columns),
        "a chain": drawn(k.RBF(0.3), 2, input_transform=chain),
        "coupled outputs": matheron.draw(two_outputs(COUPLED), 4, seed=0),
        "outputs": matheron.draw(matheron.Outputs([smooth, rough]), 4, seed=0),
        "an ensemble": ensemble,
        "an ensemble as an output": matheron.OutputPaths([ensemble, matheron.draw(smooth, 11, seed=0)]),
        "an output": matheron.draw(matheron.SelectedOutputs(two_outputs(COUPLED), [1]), 4, seed=0),
        "conditioned": paths.condition_on(points(3, 1), points(6, 3), noise=0.01, seed=0),
        "refreshed": paths.refreshed([[0.3]], seed=0),
        "some paths": paths[[4, 1]],
        "a derivative of a prior": matheron.draw_prior(k.RBF(0.3), 3, input_dim=2, seed=0).gradient(),
        **given_slopes(),
        "a mean": matheron.PosteriorMean(paths),
        "a mean of outputs": matheron.PosteriorMean(matheron.draw(two_outputs(COUPLED), 4, seed=0)[..., [1, 0]]),
        "a mean of several models": matheron.PosteriorMean(matheron.draw(matheron.Outputs([smooth, rough]), 4))[
            [0] * 3
        ],
        "a mean of an ensemble": matheron.PosteriorMean(ensemble),
        "a mean of each path": matheron.PosteriorMean(paths.condition_on(points(3, 1), points(6, 3), noise=0.01)),
        "a mean of a sum": matheron.PosteriorMean(torch.arange(6.0) * paths + matheron.draw(smooth, 6, seed=1) - 1),
        "numbers of each path": torch.arange(6.0) * paths - torch.arange(6.0),
        "coordinates": matheron.Coordinates.beside(paths),
        "outputs mixed by a transform": matheron.draw(two_outputs(COUPLED), 4, seed=0).map(
            transforms.Projected([[1.0, 2.0, 0.0], [0.5, 0.0, 1.0]], [0.0, 1.0, 2.0])
        ),
        **warped(paths),
    }


def given_slopes():
    """Functions given values, slopes and second derivatives, and their derivatives."""
    X = points(6, 2)
    blocks = [observe.value(X), observe.gradient(X[:3]), observe.derivative(X[3:], (0, 1))]

    def draw(kernel):
        y = points(15 * kernel.num_outputs, 1, seed=5)[:, 0]
        return matheron.draw(matheron.ExactGP(kernel, blocks, y, 1e-2), 4, num_features=64, seed=0)

    kernels = {
        "RBF": k.RBF([0.5, 0.8]),
        "Matern-5/2": k.Matern(2.5, 0.6),
        "a product": k.RationalQuadratic(1.1, 0.6).on(0) * k.Matern(3.5, 0.8).on(1) + k.Constant(2.0),
        "periodic": k.Rotated(k.RBF([0.9, 0.4]), 30.0) * k.Periodic(1.0, 1.3).on(0),
        "spectral mixture": k.SpectralMixture([1.0], [[0.6, 0.2]], [[0.3, 0.4]]),
        "polynomial": k.Polynomial(3, 0.5) + k.RBF(0.9) * k.Linear() + k.RBF(0.9),
        "coupled": k.Coregional(k.RBF(0.5), [[1.0, 0.5], [0.5, 1.0]]),
    }
    given = {f"given slopes, {name}": draw(kernel) for name, kernel in kernels.items()}
    smooth = given["given slopes, RBF"]
    rough = matheron.draw(model(k.Matern(2.5, 0.3), 2), 4, seed=0)
    scaled = rough.of(transforms.Affine([2.0, 0.5], [0.1, -0.3]))
    return given | {
        "a gradient": smooth.gradient(),
        "a second derivative": smooth.derivative(0).derivative(1),
        "a gradient of values": rough.gradient(),
        "a derivative, scaled": scaled.derivative(1),
        "given an average by nodes": smooth.condition_on(
            observe.mean([[0.1, 0.2]], [[0.4, 0.9]]).by_nodes(4), [1.0], noise=0.01, seed=0
        ),
        "given an average by quadrature": rough.condition_on(
            observe.mean([[0.1, 0.2]], [[0.4, 0.9]]), [1.0], noise=0.01, seed=0
        ),
        "a mean given slopes": matheron.PosteriorMean(smooth),
    }


def warped(paths):
    """Behind transforms that are not affine, and with code of one's own, which torch can trace."""
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    plane, outputs = drawn(k.RBF(0.3), 2), matheron.draw(two_outputs(COUPLED), 4, seed=0)
    positive = matheron.ExactGP(
        k.Matern(1.5, 0.3), points(9, 1), 1 + points(9, 1)[:, 0], 0.0, output_transform=transforms.Exp()
    )
    columns = [transforms.Log(10.0), transforms.Affine(2.0), transforms.Imputed([0.3], -9.9)]
    return {
        "logarithms": matheron.draw(positive, 4, seed=0),
        "powers": paths.map(transforms.Chain([transforms.Inverse(transforms.YeoJohnson(0.7)), transforms.SignedExp()])),
        "inputs on a log scale": plane.of(transforms.Log(10.0, [True, False])),
        "warped inputs": plane.of(transforms.Kumaraswamy([1.5, 2.0], [0.7, 1.2])),
        "rounded inputs": plane.of(transforms.Round([True, False], tau=0.3)),
        "columns of several": plane.of(transforms.Columns(columns[:2], [[2], [0]], 3)),
        "filled in": paths.of(columns[2]),
        "monomials": plane.of(transforms.Monomials([[2, 1], [0, 1]])),
        "choices": paths.of(transforms.OneHot([0.0, 1.0], [0, 0], 1, only_known=True, kept=[1])),
        "warped coordinates": plane.compose(
            (matheron.Coordinates.beside(plane) + 0.1 * plane.square()).of(transforms.Log())
        ),
        "a cut": paths.clamp(-0.1, 0.3),
        "a network": plane.of(network),
        "a map of one's own": paths.map(lambda f: f.sin() * f),
        "a map of outputs": outputs.map(lambda f: f[..., 0] * f[..., 1]),
        "a softmax": outputs.map(torch.nn.Softmax(-1)),
        "a mean of one's own": drawn(k.RBF(0.3), 2, mean=lambda x: x[..., 0] ** 2),
        "such means of outputs": 2
        * matheron.draw(matheron.Outputs([model(k.RBF(0.3), mean=torch.nn.Linear(1, 1).double())] * 2), 4),
    }


def assert_same(functions, module, tolerance: float = 1e-12) -> None:
    for shape in ((30,), (1, 30), (functions.num_paths, 7), (1,)):
        x = points(*shape, functions.input_dim, dtype=functions.dtype)
        x = x.round() if any(isinstance(part, transforms.OneHot) for part in functions.modules()) else x
        expected, got = functions(x), module(x)
        assert got.shape == expected.shape and got.dtype == expected.dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", KERNELS)
def test_a_module_has_the_values_of_the_paths(name):
    paths = drawn(*KERNELS[name])
    assert_same(paths, paths.to_module())


def test_modules_of_all_kinds_of_functions_have_their_values():
    for name, functions in others().items():
        # The lattice's own transforms, and the library's sums of a sparse model's large weights, have errors of 1e-11.
        assert_same(functions, functions.to_module(), 1e-10 if "lattice" in name or "sparse" in name else 1e-12)


def test_in_float32_a_module_errs_by_rounding_alone():
    paths = drawn(k.Matern(2.5, 0.3), 2, dtype=torch.float32, num_features=256)
    x = points(200, 2, dtype=torch.float32)
    summands = 1 + paths.update.v.abs().sum(1).max()  # the sizes of what is added up, with kernels of at most one
    assert (paths.to_module()(x) - paths(x)).abs().max() < 1e-6 * summands
    rough = drawn(k.Matern(2.5, 0.3), dtype=torch.float32, noise=1e-7, n=40)
    assert rough.update.v.dtype == torch.float64, "weights of which float32 has too few digits stay in float64"
    assert (rough.to_module()(x[:, :1]) - rough(x[:, :1])).abs().max() < 1e-5


def test_in_float32_the_phases_of_a_lattice_keep_their_digits():
    paths = matheron.draw_prior(k.Matern(1.5, 0.01), 2, input_dim=1, domain=(0.0, 5.0), seed=0).to(torch.float32)
    x = 4 + points(200, 1, dtype=torch.float32)  # phases of some 10,000 radians, of which float32 has three decimals
    assert (paths.to_module()(x) - paths(x)).abs().max() < 1e-5


def test_a_module_is_plain_buffers_and_the_paths_do_not_know_of_it():
    paths = drawn(k.RBF(0.3))
    before, module = paths([[0.3]]), paths.to_module()
    assert not any(isinstance(part, Value) for part in module.modules())
    assert not list(module.parameters()) and not module.training
    for buffer in module.buffers():
        buffer.zero_()
    assert torch.equal(paths([[0.3]]), before) and not module(torch.ones(1, 1, dtype=DOUBLE)).any()


def test_a_module_of_paths_in_a_graph_is_not_in_it():
    kernel = k.RBF(torch.tensor(0.3, dtype=DOUBLE, requires_grad=True))
    module = matheron.draw(model(kernel), 2, detach=False, seed=0).to_module()
    assert not any(buffer.requires_grad for buffer in module.buffers())


def test_outside_the_domain_of_a_lattice_values_are_nan():
    module = matheron.draw(model(k.RBF(0.3)), 2, domain=(0.0, 1.0), seed=0).to_module()
    assert module(torch.tensor([[0.5], [1.5], [-0.5]], dtype=DOUBLE)).isnan().tolist() == [[False, True, True]] * 2


@pytest.mark.parametrize("name", ["Matern-1/2", "Matern-3/2", "Matern-5/2", "spherical", "rational quadratic"])
def test_derivatives_are_finite_and_right_at_a_centre(name):
    paths = drawn(*KERNELS[name], s=2)
    x = torch.cat([paths.update.centres[:3], points(4, paths.input_dim)])
    gradient = torch.func.vmap(torch.func.jacrev(lambda x: paths.to_module()(x[None])[:, 0]), out_dims=1)(x)
    torch.testing.assert_close(gradient, paths.value_and_grad(x)[1], rtol=1e-7, atol=1e-7)


def test_second_derivatives_are_those_of_the_paths_at_a_centre_too():
    paths = drawn(k.Matern(2.5, 0.3), 2, s=1)
    x = torch.cat([paths.update.centres[:2], points(3, 2)])
    module = paths.to_module()
    of_module, of_paths = (
        torch.stack([torch.func.hessian(lambda x, f=f: f(x[None])[0, 0])(row) for row in x]) for f in (module, paths)
    )
    torch.testing.assert_close(of_module, of_paths, rtol=1e-5, atol=1e-5)


def test_torch_compile_takes_a_module_whole():
    paths = matheron.draw(model(k.Matern(2.5, 0.3) + k.Linear()), 4, paths_per_basis=2, num_features=64, seed=0)
    for functions in (
        paths,
        paths.of(transforms.Kumaraswamy(1.5, 0.7)).map(transforms.YeoJohnson(0.5)).map(lambda f: f**2),
    ):
        compiled = torch.compile(functions.to_module(), fullgraph=True, backend="eager", dynamic=True)
        assert_same(functions, compiled)


@pytest.mark.slow
def test_inductor_s_code_has_the_same_values():
    paths = matheron.draw(model(k.Matern(2.5, 0.3) * k.RBF(1.0).on(0), 2), 4, num_features=64, seed=0)
    compiled = torch.compile(paths.to_module(), fullgraph=True, dynamic=True)
    assert_same(paths, compiled)


def test_a_module_is_copied_and_moved_as_any_other():
    paths = drawn(k.RBF(0.3))
    module = copy.deepcopy(paths.to_module()).float()
    x = points(5, 1)
    torch.testing.assert_close(module(x.float()).double(), paths(x), rtol=1e-4, atol=1e-4)


class Own(k.Kernel):
    """A kernel with a covariance and features of its own."""

    def forward(self, x, z):
        return 1 + x @ z.mT

    def features(self, num_features, generator):
        return lambda x: torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


class OwnMean(matheron.means.ConstantMean):
    """A subclass, which may look at its points."""


class OwnTransform(transforms.Exp):
    """The same of a transform."""


class NotQuiteRBF(k.RBF):
    """A subclass, which may compute something else."""


def on_a_sphere():
    features = spherical_features(k.RBF(0.5), torch.zeros(3), 1.0)
    assert features is not None
    return matheron.draw_prior(k.RBF(0.5), 2, input_dim=3, features=features, seed=0)


def exponential(x, z, rate):
    return (-(x[:, None] - z).abs().sum(-1) * rate).exp()


def cauchy_waves(num_features, generator, rate):
    theta = rate * torch.empty(1, num_features, dtype=DOUBLE).cauchy_(generator=generator)
    return lambda x: torch.cat([(x @ theta).cos(), (x @ theta).sin()], dim=1) / num_features**0.5


def by_code():
    """Functions under kernels, and with features, by code of one's own."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
    kernels = {
        "a class": 2.0 * Own() * k.RBF(0.5) + k.Matern(1.5, 0.4),
        "a feature map": k.from_features(network) * k.RBF(0.7).on(0) + k.Constant(1.0),
        "two functions": k.from_callables(exponential, cauchy_waves, rate=2.0).on(0),
        "coupled outputs": k.Coregional(Own().on(1), [[1.0, 0.5], [0.5, 1.0]]),
        "fidelities": k.RBF(0.3).on(0)
        + k.LinearTruncated(1.0).on(1) * k.RBF(0.2).on(0)
        + k.Downsampling(1.0, 0.5).on(1),
    }
    X = points(9, 2)
    for name, kernel in kernels.items():
        y = X[:, 0] if kernel.num_outputs == 1 else X
        gp = matheron.ExactGP(kernel, X, y, 1e-2)
        yield name, matheron.draw(gp, 4, num_features=64, paths_per_basis=2, seed=0)


def test_code_of_ones_own_travels_in_modules_and_graphs_and_no_file_of_numbers_holds_it(tmp_path):
    for name, functions in by_code():
        module = functions.to_module()
        assert_same(functions, module)
        x = points(7, 2)
        if name in ("a class", "a feature map"):  # tracing takes seconds
            functions.export(tmp_path / "f.pt2")
            graph = torch.export.load(tmp_path / "f.pt2").module()
            torch.testing.assert_close(graph(x), functions(x), rtol=1e-12, atol=1e-12)
        with pytest.raises(
            TypeError, match=r"no \.safetensors file holds .* code of .* own; write an \.onnx or a \.pt2"
        ):
            functions.export(tmp_path / "f.safetensors")


REFUSED = {
    "fingerprints": ("cannot travel", lambda: matheron.draw(model(k.Tanimoto()), 2, seed=0)),
    "slopes under a kernel of one's own": (
        "Own: slopes under kernels of your own do not travel; give the paths differences",
        lambda: drawn(Own()).condition_on(observe.derivative([[0.5]], 0), [1.0], noise=0.1),
    ),
    "a subclass": ("NotQuiteRBF: .* cannot travel; kernels that do are RBF", lambda: drawn(NotQuiteRBF(0.3))),
    "a Bessel function": (r"Matern\(nu=0.8\): .* expected nu = 1/2", lambda: drawn(k.Matern(0.8, 0.3))),
    "a mean": (
        "OwnMean: this code cannot travel; take the functions without it",
        lambda: drawn(k.RBF(0.3), mean=OwnMean()),
    ),
    "a transform": ("OwnTransform: this code cannot travel", lambda: drawn(k.RBF(0.3)).map(OwnTransform())),
    "a derivative of monomials": (
        r"PartialDerivatives: .* differentiate that: torch.func.jacrev",
        lambda: drawn(k.RBF(0.3) * k.Linear()).derivative(0),
    ),
    "averages over boxes": (
        r"averages over boxes .* do not travel; .* observe.mean\(lower, upper\).by_nodes\(4\), .* observe.combine",
        lambda: drawn(k.RBF(0.3)).condition_on(observe.mean([[0.1]], [[0.4]]), [1.0], noise=0.1),
    ),
    "a derivative of a product": (
        r"PartialDerivatives: .* do not travel; take the module of the function itself",
        lambda: drawn(k.RBF(0.3)).exp().gradient(),
    ),
    "harmonics": ("SphericalHarmonics: .* cannot travel", on_a_sphere),
}


def test_functions_of_two_dtypes_are_refused():
    one, other = drawn(k.RBF(0.3)), drawn(k.RBF(0.3)).float()
    for functions in (one * other, matheron.PosteriorMean(matheron.stack([one, other]))):
        with pytest.raises(TypeError, match=r"of one dtype to be combined; move some with \.to\(dtype\)"):
            functions.to_module()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_says_why_and_what_to_do(name):
    reason, make = REFUSED[name]
    with pytest.raises(TypeError, match=reason):
        make().to_module()
