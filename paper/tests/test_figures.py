"""The paper's figures at a tiny scale: what they must show even there, and that their files are written."""

import io
import json

import pytest
import torch
from rich.console import Console
from scipy.stats import kstest

import matheron
from matheron.compare.samplers import moments, orthogonal, weight_space_sparse
from matheron_paper import Trial, experiment, run
from matheron_paper import one_dimension as line
from matheron_paper.decompositions import law
from matheron_paper.report import quartiles
from matheron_paper.sampling import NOISE, decoupled, exact, fresh, kernel, optimal, problem, weights

CPU = torch.device("cpu")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("wasserstein", "wasserstein-love")]
NAMES = ["posteriors", "overview", *SLOW, "bounds", "leverage", "decompositions"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every experiment at its tiny scale, run once: name -> (records, summary)."""
    found = {}

    def of(name):
        if name not in found:
            out = tmp_path_factory.mktemp(name)
            console = Console(file=io.StringIO(), width=200)
            summary = run(experiment(name), "tiny", out=out, workers=1, console=console)
            lines = (out / f"{name}-tiny.jsonl").read_text().splitlines()
            found[name] = [json.loads(line) for line in lines[1:]], summary
        return found[name]

    return of


def median(records, method, ell, **case):
    values = [
        row["w2"]
        for record in records
        if case.items() <= record["case"].items()
        for row in record["result"]["rows"]
        if (row["method"], row["ell"]) == (method, ell)
    ]
    return quartiles(values)[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_and_leaves_its_table_and_figure(results, name):
    records, summary = results(name)
    assert summary.failed == summary.left == 0 and summary.finished == len(records)
    sizes = {path.suffix: path.stat().st_size for path in summary.files}
    assert set(sizes) == {".jsonl", ".csv", ".md", ".png", ".pdf"} and min(sizes.values()) > 100
    assert summary.report is not None and summary.report.table.rows


@pytest.mark.parametrize("name", SLOW)
def test_in_one_trial_all_samplers_see_the_same_problem_and_a_trial_can_be_repeated(name):
    it = experiment(name)
    settings = it.settings("tiny")
    case = it.cases(settings)[0]
    first, again = (it.run(Trial(name, case, 0, 0), settings, CPU)["rows"] for _ in range(2))
    assert [row["w2"] for row in first] == [row["w2"] for row in again]


def test_weight_space_suffers_from_data_and_decoupled_does_not(results):
    records, _ = results("wasserstein")
    for d in (2, 4):
        weight_few, weight_many = (median(records, "weight-space", 16, d=d, n=n) for n in (4, 64))
        few, many = (median(records, "decoupled", 16, d=d, n=n) for n in (4, 64))
        assert weight_many > weight_few and weight_many > 2 * many
        assert many < 1.2 * few


def test_no_sampler_beats_the_exact_one_and_more_features_help(results):
    records, _ = results("wasserstein")
    for record in records:
        rows = {(row["method"], row["ell"]): row["w2"] for row in record["result"]["rows"]}
        assert min(rows.values()) == rows["exact", None]
        assert rows["decoupled", 64] < rows["decoupled", 16]
        assert rows["fresh bases", 16] < rows["decoupled", 16]


def test_frequencies_by_leverage_err_less_where_there_are_data(results):
    records, _ = results("wasserstein")
    assert median(records, "leverage", 64, d=2, n=64) < median(records, "decoupled", 64, d=2, n=64)
    records, _ = results("leverage")
    for record in (r for r in records if r["case"]["n"] == 32):
        relative = {row["method"]: row["relative"] for row in record["result"]["rows"]}
        assert relative["leverage"] < relative["paper"]


@pytest.mark.slow
def test_love_improves_as_its_grid_fills_the_space(results):
    records, _ = results("wasserstein-love")
    assert median(records, "LOVE", None, d=2, n=36) < median(records, "LOVE", None, d=2, n=9)
    assert median(records, "decoupled", 64, d=2, n=36) < median(records, "LOVE", None, d=2, n=36)


def test_figure_1_shows_variance_starvation(results):
    records, _ = results("posteriors")
    w2 = {(r["case"]["n"], r["case"]["posterior"]): r["result"] for r in records}
    for n in (4, 1000):
        assert w2[n, "exact"]["closed form"] < 1e-4
    assert w2[1000, "random features"]["closed form"] > 3 * w2[4, "random features"]["closed form"]
    assert w2[1000, "random features"]["closed form"] > 3 * w2[1000, "sparse"]["closed form"]


def test_figure_2_adds_the_update_to_the_prior_and_passes_through_u(results):
    records, _ = results("overview")
    shown = records[0]["result"]["figure"]
    prior, update, path = (torch.tensor(shown[name]) for name in ("prior", "update", "path"))
    assert torch.allclose(prior + update, path, atol=2e-4)  # to the decimals that are stored
    assert len(shown["u"]) == len(shown["Z"]) == 8
    sparse, drawn = (records[0]["result"][law] for law in ("sparse posterior, closed form", "decoupled, closed form"))
    assert abs(drawn - sparse) < 0.2 * sparse  # the error is the inducing points', not the sampling's


def test_the_covariance_error_falls_as_the_root_of_ell_and_no_bound_is_broken(results):
    records, summary = results("bounds")
    for record in records:
        slope, error = record["result"]["slope"], record["result"]["standard error"]
        # The rate is asymptotic: at 16 features the supremum is a little off it.
        assert abs(slope + 0.5) < 4 * error + 0.05
        for row in record["result"]["rows"]:
            assert row["covariance error"] < row["with the Lebesgue constant"] <= row["covariance bound"]
            assert row["W2"] < row["W2 bound"]
    assert summary.report.remarks == ["The bounds were broken in 0 of 72 comparisons."]


def test_a_broken_bound_would_be_counted(results):
    records, _ = results("bounds")
    records = json.loads(json.dumps(records))
    records[0]["result"]["rows"][0]["W2 bound"] = 0.0
    it = experiment("bounds")
    assert it.report(records, it.settings("tiny")).remarks == ["The bounds were broken in 1 of 72 comparisons."]


@pytest.mark.parametrize("name", ["posteriors", "overview"])
def test_figures_1_and_2_are_of_the_same_function(name):
    one = line.data(Trial("posteriors", {"n": 4}, 3, 5), CPU)
    other = line.data(Trial(name, {"n": 1000}, 3, 5), CPU)
    assert torch.equal(one[1000].train_targets, other[1000].train_targets)


def test_few_and_many_data_of_figure_1_agree():
    # Two of the four lie at the ends of the bands, so the many predict them to within the noise.
    models = line.data(Trial("posteriors", {}, 0, 0), CPU)
    mean, covariance = moments(models[1000], models[4].train_inputs)
    z = (models[4].train_targets - mean) / (covariance.diagonal() + NOISE).sqrt()
    assert z.abs().max() < 4


def test_the_sparse_posterior_has_the_optimal_q():
    """Against the posterior of an exact GP: with an inducing point at every datum the two are the same."""
    gp = line.data(Trial("posteriors", {}, 1, 0), CPU)[4]
    x = line.grid(50, CPU)
    truth, found = moments(gp, x), moments(line.sparse(gp, 8), x)
    assert torch.allclose(found.mean, truth.mean, atol=1e-4)
    assert torch.allclose(found.covariance, truth.covariance, atol=1e-4)


def test_the_bound_is_below_the_evidence_and_tight_at_the_data():
    gp = line.data(Trial("posteriors", {}, 1, 0), CPU)[4]
    X, y = gp.train_inputs, gp.train_targets
    K = gp.kernel(X, X) + NOISE * torch.eye(4, dtype=X.dtype)
    constant = 2 * torch.pi * torch.ones((), dtype=X.dtype)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), K).log_prob(y)
    evidence += 2 * constant.log() + 2 * torch.tensor(NOISE, dtype=X.dtype).log()  # what the bound leaves out
    assert torch.isclose(line._bound(gp.kernel, X, y, X), evidence, rtol=1e-5)
    assert line._bound(gp.kernel, X, y, X[:2]) < evidence


def test_a_problem_is_the_papers():
    generator = torch.Generator().manual_seed(0)
    gp, x = problem(torch.rand(50, 4, dtype=torch.float64, generator=generator), 20, generator, CPU)
    assert x.shape == (20, 4) and 0 <= x.min() and x.max() <= 1
    lengthscale = float(torch.as_tensor(gp.kernel.lengthscale))
    assert lengthscale == pytest.approx((4 / 100) ** 0.5) and float(gp.noise[0]) == 1e-3


def test_targets_come_from_the_prior():
    """y ~ N(0, K + sigma^2 I) whitens to independent standard normals, here for points that are close together."""
    generator = torch.Generator().manual_seed(0)
    whitened = []
    for _ in range(20):
        X = 0.05 * torch.rand(50, 4, dtype=torch.float64, generator=generator)
        gp, _ = problem(X, 1, generator, CPU)
        L = torch.linalg.cholesky(gp.kernel(X, X) + NOISE * torch.eye(50, dtype=X.dtype))
        whitened.append(torch.linalg.solve_triangular(L, gp.train_targets[:, None], upper=False)[:, 0])
    z = torch.cat(whitened)
    assert kstest(z.numpy(), "norm").pvalue > 1e-3 and z.abs().max() < 5
    assert abs(float(z.square().mean()) - 1) < 4 * (2 / len(z)) ** 0.5


@pytest.mark.parametrize("num_draws", [100, 3000])
def test_samplers_give_as_many_draws_as_asked_for(num_draws):
    X = torch.rand(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gp = matheron.ExactGP(kernel(2), X, [0.0, 1.0, 0.0], noise=NOISE)
    x = X + 0.1
    for blocks in (
        exact(gp, x),
        decoupled(gp, x, 8),
        decoupled(gp, x, 8, "equispaced"),
        fresh(gp, x, 8),
        weights(gp, x, 8),
    ):
        shapes = [block.shape for block in blocks(num_draws, torch.Generator().manual_seed(0))]
        assert sum(shape[0] for shape in shapes) == num_draws and {shape[1] for shape in shapes} == {3}


def test_draws_in_blocks_share_their_basis_unless_it_is_fresh():
    """Of 3 features the draws at 10 points have rank 3 if all share them, and full rank if not."""
    x = torch.rand(10, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gp = matheron.ExactGP(kernel(2), x[:1] + 5.0, [0.0], noise=NOISE)  # far away: a prior

    def rank(blocks):
        draws = torch.cat(list(blocks(3000, torch.Generator().manual_seed(0))))
        return int(torch.linalg.matrix_rank(draws, rtol=1e-6))

    assert rank(decoupled(gp, x, 3)) == rank(weights(gp, x, 3)) == 3
    assert rank(fresh(gp, x, 3)) == 10


@pytest.mark.parametrize("method", ["weight-space", "orthogonal"])
def test_the_laws_of_the_other_decompositions_are_those_of_their_draws(method):
    generator = torch.Generator().manual_seed(0)
    gp, x = problem(torch.rand(12, 2, generator=generator, dtype=torch.float64), 6, generator, CPU)
    model = optimal(gp, gp.train_inputs[:4])
    basis = matheron.draw(model, 1, num_features=16, features="cosine", generator=generator)
    draw = {"weight-space": weight_space_sparse, "orthogonal": orthogonal}[method]
    values = draw(model, 40_000, features=basis.prior.features, generator=generator)(x)
    mean, covariance = law(method, model, basis, x)
    deviation = covariance.diagonal().sqrt()
    assert float(((values.mean(0) - mean) / deviation).abs().max()) < 5 / 200
    error = (torch.cov(values.mT) - covariance) / torch.outer(deviation, deviation)
    assert float(error.abs().max()) < 5 * 2**0.5 / 200


def test_a_sparse_posterior_at_all_data_is_the_exact_one():
    generator = torch.Generator().manual_seed(0)
    gp, x = problem(torch.rand(12, 2, generator=generator, dtype=torch.float64), 6, generator, CPU)
    for found, expected in zip(moments(optimal(gp, gp.train_inputs), x), moments(gp, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
