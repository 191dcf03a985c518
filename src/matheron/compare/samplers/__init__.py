"""The samplers that the paper compares with, and the closed-form moments that all samplers are measured against.

Samplers have the signature of `matheron.draw`: `sampler(model, num_paths, ..., generator=...)`. Their results are
called with points. Weight-space samplers return functions (`Paths`). Location-scale sampling and LOVE return objects
that draw new values at each call.
"""

from .closed_form import Moments as Moments
from .closed_form import Posterior as Posterior
from .closed_form import decoupled_moments as decoupled_moments
from .closed_form import marginals as marginals
from .closed_form import moments as moments
from .closed_form import weight_space_moments as weight_space_moments
from .conditionals import inner_points as inner_points
from .conditionals import single as single
from .function_space import ValueDraws as ValueDraws
from .function_space import joint_draws as joint_draws
from .function_space import location_scale as location_scale
from .lanczos import love as love
from .linear_model import LinearModelPaths as LinearModelPaths
from .linear_model import feature_covariance as feature_covariance
from .linear_model import orthogonal as orthogonal
from .linear_model import weight_space as weight_space
from .linear_model import weight_space_sparse as weight_space_sparse
