"""Likelihoods of outcomes: what takes the latent functions of a variational model to probabilities, or to outcomes."""

from __future__ import annotations

from functools import singledispatch

from gpytorch import likelihoods

from ...models.likelihoods import Bernoulli, Likelihood, StudentT
from ..refusal import refusal
from .place import tensor


@singledispatch
def likelihood_of(likelihood: object) -> Likelihood:
    """A GPyTorch likelihood as one of `matheron.likelihoods`; a path of the model that it belongs to is latent.

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
