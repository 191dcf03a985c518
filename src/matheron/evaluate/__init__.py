"""How paths are computed: evaluators that read a record of them, the first that can."""

from .bases import Basis as Basis
from .bases import Canonical as Canonical
from .bases import Cosines as Cosines
from .bases import Pairs as Pairs
from .bases import Products as Products
from .chunked import MEMORY_BUDGET as MEMORY_BUDGET
from .evaluators import EVALUATORS as EVALUATORS
from .evaluators import Evaluator as Evaluator
from .evaluators import record_shares_work as record_shares_work
from .evaluators import register as register
from .evaluators import values as values
from .evaluators import values_and_gradients as values_and_gradients
from .fused.join import joined_gradients as joined_gradients
from .grid import on_grid as on_grid
from .path_terms import PathTerm as PathTerm
from .path_terms import WeightedSum as WeightedSum
from .path_terms import Wide as Wide
from .path_terms import sum_of as sum_of
from .record import Record as Record
from .record import Recorder as Recorder
from .record import by_digits as by_digits
from .record import inner_points as inner_points
