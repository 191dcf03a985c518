"""GPflow 2: GPR, SGPR, VGP and SVGP models as snapshots. NumPy values alone cross the border.

A path is the latent function, as in `predict_f`, whatever the likelihood. A White kernel adds to `predict_f`'s
covariance of a point with itself; here it is noise of the data, and not part of the function. A Coregion kernel makes
its column of X the task: paths take the other columns and return an axis of outputs.
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
