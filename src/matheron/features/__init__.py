"""Finite bases for a prior: x -> Phi."""

from .choose import make_features as make_features
from .choose import posterior_at as posterior_at
from .choose import to_come as to_come
from .features import Block as Block
from .features import Choice as Choice
from .features import Features as Features
from .needed import nearest as nearest
from .needed import posterior_scale as posterior_scale
from .spec import KINDS as KINDS
from .spec import LARGEST_DIM as LARGEST_DIM
from .spec import LATTICE_KINDS as LATTICE_KINDS
from .spec import FeatureSpec as FeatureSpec
from .spec import feature_spec as feature_spec
from .spherical import SphericalHarmonics as SphericalHarmonics
from .spherical import spherical_features as spherical_features
