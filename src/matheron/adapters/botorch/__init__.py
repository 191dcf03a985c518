"""BoTorch: its models, with their transforms, as snapshots; and paths as a BoTorch model."""

from .models import describe as describe
from .transforms import input_transform_of, outcome_transform_of
from .view import PathModel as PathModel

REGISTRIES = {
    "models": describe,
    "input transforms": input_transform_of,
    "outcome transforms": outcome_transform_of,
}
