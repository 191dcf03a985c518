"""Finite bases for a prior: x -> Phi."""

from .features import KINDS as KINDS
from .features import LARGEST_DIM as LARGEST_DIM
from .features import LATTICE_KINDS as LATTICE_KINDS
from .features import Block as Block
from .features import Choice as Choice
from .features import Features as Features
from .features import FeatureSpec as FeatureSpec
from .features import feature_spec as feature_spec
from .features import make_features as make_features
from .residuals import Reference as Reference
from .residuals import nearest as nearest
from .residuals import posterior_at as posterior_at
from .residuals import posterior_scale as posterior_scale
from .residuals import reference_points as reference_points
from .residuals import to_come as to_come
from .residuals import typical_variances as typical_variances
from .spherical import SphericalHarmonics as SphericalHarmonics
from .spherical import spherical_features as spherical_features
