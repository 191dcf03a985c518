"""The paper's two propositions as code: constants, bounds, and what is measured beside them. See docs/theory.md."""

from .covariance import CovarianceBound as CovarianceBound
from .covariance import Rate as Rate
from .covariance import covariance_bound as covariance_bound
from .covariance import covariance_rate as covariance_rate
from .fourier import fourier_constant as fourier_constant
from .norms import Constants as Constants
from .norms import OperatorNorm as OperatorNorm
from .norms import constants as constants
from .norms import lebesgue_constant as lebesgue_constant
from .norms import operator_norm as operator_norm
from .wasserstein import PriorError as PriorError
from .wasserstein import WassersteinBound as WassersteinBound
from .wasserstein import prior_error as prior_error
from .wasserstein import wasserstein_bound as wasserstein_bound
