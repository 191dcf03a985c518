"""Finite bases for a prior: x -> Phi."""

from .choose import KINDS as KINDS
from .choose import LARGEST_DIM as LARGEST_DIM
from .choose import LATTICE_KINDS as LATTICE_KINDS
from .choose import build_features as build_features
from .features import Accuracy as Accuracy
from .features import Asked as Asked
from .features import Choice as Choice
from .features import Features as Features
from .leverage.reference import LARGEST_WHOLE as LARGEST_WHOLE
from .needed import nearest as nearest
from .needed import posterior_scale as posterior_scale
from .spherical import SphericalHarmonics as SphericalHarmonics
from .spherical import spherical_features as spherical_features
