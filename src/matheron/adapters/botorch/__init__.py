"""The adapter for BoTorch: models with their transforms as snapshots, and paths behind BoTorch's own functions."""

from ..refusal import needs

with needs("BoTorch", "botorch"):
    import botorch as _botorch  # noqa: F401

from ..gpytorch.kernels import kernel_of
from ..gpytorch.models import noise_of
from .dropin import MatheronPathModel as MatheronPathModel
from .dropin import PathModel as PathModel
from .dropin import PathwiseThompsonSampling as PathwiseThompsonSampling
from .dropin import get_matheron_path_model as get_matheron_path_model
from .dropin import get_optimal_samples as get_optimal_samples
from .dropin import sample_optimal_points as sample_optimal_points
from .models import describe as describe
from .models import input_transform_of, outcome_transform_of

REGISTRIES = {
    "models": describe,
    "kernels": kernel_of,
    "likelihoods": noise_of,
    "input transforms": input_transform_of,
    "outcome transforms": outcome_transform_of,
}
