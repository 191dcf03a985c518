"""GPflow's models, trained for real, and GPflow's own `predict_f` at test points."""

# pyright: reportMissingImports=false

from __future__ import annotations

import gpflow
import numpy as np

from adapters.battery import Case, Moments

gk = gpflow.kernels
rng = np.random.default_rng(7)
X = rng.uniform(-2, 2, (24, 2))
F = np.stack([np.sin(2 * X[:, 0]) + X[:, 1], np.cos(X[:, 0] * X[:, 1]) - 0.5], axis=1)
Y = F + 0.1 * rng.standard_normal(F.shape)
Z = rng.uniform(-2, 2, (9, 2))
x = rng.uniform(-2.5, 2.5, (6, 2))
A, b = np.array([[0.5, -0.3], [1.0, 0.2]]), np.array([0.4, -2.0])


def trained(model, data=None, steps: int = 8):
    """A few steps of L-BFGS on every parameter, so that none is what it was at the start."""
    loss = model.training_loss if data is None else model.training_loss_closure(data, compile=True)
    before = [v.numpy() for v in model.trainable_variables]
    gpflow.optimizers.Scipy().minimize(loss, model.trainable_variables, compile=True, options={"maxiter": steps})
    assert any(np.abs(v.numpy() - old).max() > 1e-3 for v, old in zip(model.trainable_variables, before, strict=True))
    return model


def linear_mean():
    return gpflow.mean_functions.Linear(A[:, :1], b[:1]) + gpflow.mean_functions.Constant(c=0.7)


def two_means():
    return gpflow.mean_functions.Linear(A, b)


def kernel():
    return gk.SquaredExponential(1.3, [0.8, 1.5]) + gk.Linear(active_dims=[1])


def independent(model, x) -> Moments:
    """Moments of outputs that GPflow answers side by side, `[t, n, n]`."""
    mean, cov = (v.numpy() for v in model.predict_f(x, full_cov=True))  # [n, t], [t, n, n]
    if cov.shape[0] == 1:
        return Moments(mean[:, 0], cov[0])
    joint = np.einsum("tnm,ts->ntms", cov, np.eye(len(cov)))
    return Moments(mean, joint.reshape(mean.size, mean.size))


def joint(model, x) -> Moments:
    """Moments of coupled outputs, `[n, t, n, t]`, from the cached posterior, which respects active_dims throughout."""
    mean, cov = (v.numpy() for v in model.posterior().predict_f(x, full_cov=True, full_output_cov=True))
    return Moments(mean, cov.reshape(mean.size, mean.size))


def gpr(kernel, Y=Y[:, :1], mean=None):
    return lambda: trained(gpflow.models.GPR((X, Y), kernel(), mean() if mean else None, noise_variance=0.1))


def sgpr(Y=Y[:, :1], mean=None):
    return lambda: trained(
        gpflow.models.SGPR((X, Y), kernel(), Z.copy(), mean_function=mean() if mean else None, noise_variance=0.1)
    )


def vgp(Y, likelihood, mean=None):
    return lambda: trained(gpflow.models.VGP((X, Y), kernel(), likelihood(), mean() if mean else None))


def svgp(kernel, inducing=lambda: Z.copy(), Y=Y[:, :1], *, mean=None, num_latent_gps=None, **settings):
    count = num_latent_gps or Y.shape[1]
    settings.setdefault("q_sqrt", uneven(count, settings.get("q_diag", False)))

    def fit():
        means = mean() if mean else None
        likelihood = gpflow.likelihoods.Gaussian(0.1)
        model = gpflow.models.SVGP(
            kernel(), likelihood, inducing(), mean_function=means, num_latent_gps=count, **settings
        )
        return trained(model, (X, Y))

    return fit


def uneven(count: int, diagonal: bool):
    """A q(u) to start from in which no two numbers are alike, so that none can be taken for another."""
    start = np.random.default_rng(5)
    scales = start.uniform(0.1, 1.0, (len(Z), count))
    if diagonal:
        return scales
    return np.stack([np.tril(0.2 * start.standard_normal((len(Z), len(Z))), -1) + np.diag(s) for s in scales.T])


def points():
    return gpflow.inducing_variables.InducingPoints(Z.copy())


def shared():
    return gpflow.inducing_variables.SharedIndependentInducingVariables(points())


def separate(count: int = 2):
    parts = [gpflow.inducing_variables.InducingPoints(Z + 0.2 * i) for i in range(count)]
    return gpflow.inducing_variables.SeparateIndependentInducingVariables(parts)


def shared_kernel():
    return gk.SharedIndependent(kernel(), 2)


def separate_kernel():
    return gk.SeparateIndependent([kernel(), gk.Matern52(0.7, [1.2, 0.6])])


def coregionalization():
    return gk.LinearCoregionalization(
        [gk.Matern32(0.9, 1.1), gk.SquaredExponential(1.2, 0.7), gk.RationalQuadratic(0.4)],
        W=np.array([[1.0, 0.3, -0.5], [-0.6, 0.8, 0.2]]),
    )


def fixed_coregionalization():
    """Not trained, so that training cannot make it small: what q(u) has of each latent function must show."""
    kernel = coregionalization()
    gpflow.set_trainable(kernel, False)
    return kernel


def correlated(kernel, **settings):
    """One q(u) of all outputs at plain inducing points: GPflow has it as one long vector."""
    q_mu, q_sqrt = np.zeros((2 * len(Z), 1)), np.eye(2 * len(Z))[None]
    return svgp(kernel, points, Y, num_latent_gps=1, q_mu=q_mu, q_sqrt=q_sqrt, **settings)


MODELS = [
    Case("GPR", gpr(kernel), independent, x),
    Case("GPR with a linear mean", gpr(kernel, mean=linear_mean), independent, x),
    Case("GPR of two columns", gpr(kernel, Y, two_means), independent, x),
    Case("GPR, identity mean", gpr(kernel, Y, gpflow.mean_functions.Identity), independent, x),
    Case("SGPR", sgpr(), independent, x),
    Case("SGPR with a mean, of two columns", sgpr(Y, two_means), independent, x),
    Case("VGP", vgp(Y[:, :1], gpflow.likelihoods.StudentT, linear_mean), independent, x),
    Case("VGP classifier", vgp((Y[:, :1] > 0).astype(float), gpflow.likelihoods.Bernoulli), independent, x),
    Case("VGP of two columns", vgp(Y, gpflow.likelihoods.StudentT, two_means), independent, x),
    Case("SVGP, whitened", svgp(kernel, mean=linear_mean), independent, x),
    Case("SVGP, whitened, diagonal", svgp(kernel, mean=linear_mean, q_diag=True), independent, x),
    Case("SVGP, unwhitened", svgp(kernel, mean=linear_mean, whiten=False), independent, x),
    Case("SVGP, unwhitened, diagonal", svgp(kernel, mean=linear_mean, whiten=False, q_diag=True), independent, x),
    Case("SVGP, one kernel, two columns", svgp(kernel, Y=Y, mean=two_means, whiten=False), independent, x),
    Case("SVGP, shared kernel and points", svgp(shared_kernel, shared, Y, mean=two_means), joint, x),
    Case("SVGP, shared kernel, separate points", svgp(shared_kernel, separate, Y, q_diag=True), joint, x),
    Case("SVGP, separate kernels, shared points", svgp(separate_kernel, shared, Y, whiten=False), joint, x),
    Case("SVGP, separate kernels and points", svgp(separate_kernel, separate, Y, mean=two_means), joint, x),
    Case("SVGP, coregionalization, whitened",
         svgp(coregionalization, lambda: separate(3), Y, num_latent_gps=3, mean=two_means), joint, x),
    Case("SVGP, coregionalization, unwhitened, diagonal",
         svgp(fixed_coregionalization, shared, Y, num_latent_gps=3, mean=two_means, whiten=False, q_diag=True),
         joint, x),
    Case("SVGP, coregionalization, one q(u) of all", correlated(coregionalization, mean=two_means), joint, x),
    Case("SVGP, one q(u) of all", correlated(lambda: gk.SeparateIndependent([gk.Matern32(), gk.Matern52()])), joint, x),
]  # fmt: skip


# Some kernels need a model of their own: White is noise, and Coregion has a task for a column.
def white_kernel():
    return gk.Matern52(1.2, 0.9) + (gk.White(0.2) + gk.SquaredExponential(0.3)) * gk.Constant(0.5)


def without_white(model, x) -> Moments:
    """`predict_f` less the White kernel of `white_kernel`, which it adds to the diagonal."""
    moments = independent(model, x)
    scale, (white, _) = model.kernel.kernels[1].kernels[1], model.kernel.kernels[1].kernels[0].kernels
    return Moments(moments.mean, moments.covariance - np.eye(len(x)) * white.variance.numpy() * scale.variance.numpy())


def growing_white_gpr():
    """White times Linear: noise that grows with x, which an exact model can have."""
    kernel = gk.Matern52(1.2, 0.9) + gk.White(0.2) * gk.Linear(0.7)
    return trained(gpflow.models.GPR((X, Y[:, :1]), kernel, noise_variance=0.1))


def without_growing_white(model, x) -> Moments:
    moments = independent(model, x)
    return Moments(moments.mean, moments.covariance - np.diag(model.kernel.kernels[1](x, full_cov=False).numpy()))


def tasked(points, tasks):
    """Points with their task in the middle: the columns after it have to move up."""
    return np.insert(points, 1, np.resize(tasks, len(points)), axis=1)


def task_kernel(num_tasks: int = 3):
    coregion = gk.Coregion(num_tasks, rank=2, active_dims=[1])
    coregion.W.assign(np.random.default_rng(3).standard_normal((num_tasks, 2)))
    return gk.Matern32(1.1, [0.8, 1.4], active_dims=[0, 2]) * coregion + gk.SquaredExponential(0.5, active_dims=[2])


def task_gpr():
    mean = gpflow.mean_functions.Linear(np.array([[0.5], [2.0], [-0.3]]), [0.1])  # the task's own slope, too
    data = tasked(X, [0, 1, 2, 1]), Y[:, :1]
    return trained(gpflow.models.GPR(data, task_kernel(), mean, noise_variance=0.1))


def task_svgp():
    data = tasked(X, [0, 1, 2, 1]), Y[:, :1]
    points = gpflow.inducing_variables.InducingPoints(tasked(Z, [2, 0, 1]))
    gpflow.set_trainable(points, False)
    mean = gpflow.mean_functions.Constant(0.8)
    model = gpflow.models.SVGP(
        task_kernel(), gpflow.likelihoods.Gaussian(0.1), points, mean_function=mean, whiten=False
    )
    return trained(model, data)


def of_tasks(model, x) -> Moments:
    mean, cov = (v.numpy() for v in model.predict_f(tasked(x.repeat(3, axis=0), [0, 1, 2]), full_cov=True))
    return Moments(mean.reshape(len(x), 3), cov[0])


def unwhitened_correlated():
    """GPflow has no KL divergence to train this one with: it takes the q(u) of a trained one."""
    model = correlated(coregionalization, mean=two_means)()
    settings = dict(mean_function=model.mean_function, q_mu=model.q_mu.numpy(), q_sqrt=0.3 * model.q_sqrt.numpy())
    return gpflow.models.SVGP(model.kernel, model.likelihood, model.inducing_variable, whiten=False, **settings)


def varying_noise_gpr():
    """A likelihood whose variance is a function of x."""
    variance = gpflow.functions.Linear(np.array([[0.02], [0.03]]), [0.2])
    likelihood = gpflow.likelihoods.Gaussian(variance)
    return trained(gpflow.models.GPR((X, Y[:, :1]), kernel(), likelihood=likelihood))


MODELS += [
    Case("GPR with White", gpr(white_kernel), without_white, x),
    Case("GPR with White that grows", growing_white_gpr, without_growing_white, x),
    Case("GPR with noise that grows", varying_noise_gpr, independent, x),
    Case("SVGP with White", svgp(white_kernel, whiten=False, mean=linear_mean), without_white, x),
    Case("GPR with Coregion", task_gpr, of_tasks, x),
    Case("SVGP with Coregion", task_svgp, of_tasks, x),
    Case("SVGP, one unwhitened q(u) of all", unwhitened_correlated, joint, x),
]
