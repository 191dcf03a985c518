"""Translation of GPyTorch's likelihoods, which map the latent functions of a variational model to outcomes."""

from __future__ import annotations

from functools import singledispatch

from gpytorch import likelihoods

from ...models.likelihoods import Bernoulli, Likelihood, StudentT
from ..refusal import refusal
from .place import tensor


@singledispatch
def likelihood_of(likelihood: object) -> Likelihood:
    """Translate a GPyTorch likelihood to one of `matheron.likelihoods`; paths of its model are latent functions.

    >>> import gpytorch
    >>> from matheron.adapters.gpytorch import likelihood_of
    >>> likelihood_of(gpytorch.likelihoods.BernoulliLikelihood())
    Bernoulli('probit')
    """
    raise refusal("likelihood", likelihood, likelihood_of)


likelihood_of.register(likelihoods.BernoulliLikelihood, lambda likelihood: Bernoulli("probit"))


@likelihood_of.register
def _(likelihood: likelihoods.StudentTLikelihood) -> Likelihood:
    df, variance = tensor(likelihood.deg_free).detach().squeeze(), tensor(likelihood.noise).detach().squeeze()
    if df.ndim or variance.ndim:
        raise ValueError(
            f"likelihood: expected one, got a batch of {max(df.numel(), variance.numel())}; index it first"
        )
    return StudentT(df, variance.sqrt())
