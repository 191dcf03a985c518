"""How paths are computed: blocks of points, at bounded memory."""

from .chunked import MEMORY_BUDGET as MEMORY_BUDGET
from .chunked import evaluate as evaluate
from .chunked import evaluate_with_gradient as evaluate_with_gradient
from .single import single as single
