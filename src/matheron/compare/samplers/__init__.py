"""The paper's competitors, and the moments in closed form that all are measured against.

Every sampler is called as `matheron.draw` is, `sampler(model, num_paths, ..., generator=...)`, and what it returns is
called with points. Weight-space samplers return functions (`Paths`); location-scale sampling and LOVE return values
only: each call draws anew."""

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
