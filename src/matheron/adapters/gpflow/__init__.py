"""The adapter for GPflow 2: GPR, SGPR, VGP and SVGP models as snapshots, which hold copies of their values.

A path is the latent function, as in `predict_f`, for every likelihood. In GPflow, a White kernel adds variance to
`predict_f`; here it is observation noise, and not part of the function. The column of X that a Coregion kernel reads
becomes the task: paths take the other columns and return an axis of outputs.
"""

from ..refusal import needs

with needs("GPflow", "gpflow"):
    import gpflow as _gpflow  # noqa: F401  # pyright: ignore[reportMissingImports]

from .kernels import translate as translate
from .means import affine
from .models import describe as describe
from .models import inducing_points, latent_kernels

REGISTRIES = {
    "models": describe,
    "kernels": translate,
    "kernels of several outputs": latent_kernels,
    "inducing variables": inducing_points,
    "mean functions": affine,
}
