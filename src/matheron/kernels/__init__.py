"""The kernel language: k(x, x') beside its spectral measure. Parametrisations are stated in each class."""

from .algebra import OnDims as OnDims
from .algebra import Product as Product
from .algebra import Scaled as Scaled
from .algebra import Sum as Sum
from .base import Kernel as Kernel
from .coregional import Coregional as Coregional
from .coregional import coupled_covariance as coupled_covariance
from .linear import Constant as Constant
from .linear import Linear as Linear
from .linear import Polynomial as Polynomial
from .radial import RBF as RBF
from .radial import Matern as Matern
from .radial import Radial as Radial
from .radial import RationalQuadratic as RationalQuadratic
from .spatial import Rotated as Rotated
from .spatial import Spherical as Spherical
from .stationary import Cosine as Cosine
from .stationary import Periodic as Periodic
from .stationary import SpectralMixture as SpectralMixture
from .stationary import Stationary as Stationary
