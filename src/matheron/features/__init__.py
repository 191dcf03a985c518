"""Finite bases for a prior: x -> Phi."""

from .basis import Basis as Basis
from .beyond import on_modes as on_modes
from .box import LARGEST_DIM as LARGEST_DIM
from .canonical import Canonical as Canonical
from .choose import KINDS as KINDS
from .choose import LATTICE_KINDS as LATTICE_KINDS
from .choose import build_features as build_features
from .features import Accuracy as Accuracy
from .features import Asked as Asked
from .features import Choice as Choice
from .features import Features as Features
from .joint import Joint as Joint
from .lattice import Lattice as Lattice
from .modulated import Modulated as Modulated
from .modulated import OnLattice as OnLattice
from .modulated import lattice_in as lattice_in
from .modulated import same_modes as same_modes
from .needed import nearest as nearest
from .needed import posterior_scale as posterior_scale
from .reference import LARGEST_WHOLE as LARGEST_WHOLE
from .series import NoJointLattice as NoJointLattice
from .spherical import spherical_features as spherical_features
