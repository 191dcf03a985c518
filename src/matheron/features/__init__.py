"""Finite bases for a prior: x -> Phi."""

from .basis import Basis as Basis
from .basis import Canonical as Canonical
from .choose import KINDS as KINDS
from .choose import Features as Features
from .choose import build_features as build_features
