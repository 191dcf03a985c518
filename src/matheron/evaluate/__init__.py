"""How paths are computed: bases and their weighted sums, and evaluators that each take some terms of a record."""

from . import fused as _fused
from .averages import averaged_basis as averaged_basis
from .averages import averaged_record as averaged_record
from .bases import Basis as Basis
from .bases import Canonical as Canonical
from .bases import Cosines as Cosines
from .bases import Pairs as Pairs
from .evaluators import BLOCKS as BLOCKS
from .evaluators import MEMORY_BUDGET as MEMORY_BUDGET
from .evaluators import Evaluator as Evaluator
from .evaluators import Points as Points
from .evaluators import record_shares_work as record_shares_work
from .evaluators import register as register
from .evaluators import values as values
from .evaluators import values_and_gradients as values_and_gradients
from .float64 import Float64Term as Float64Term
from .float64 import InFloat64 as _InFloat64
from .fused import joined_gradients as joined_gradients
from .fused.recursion import Recursion as Recursion
from .fused.recursion import recursion_of as recursion_of
from .grid import on_grid as on_grid
from .products import Products as Products
from .record import PathTerm as PathTerm
from .record import Record as Record
from .record import Recorder as Recorder
from .record import WeightedSum as WeightedSum
from .record import inner_points as inner_points
from .record import sum_of as sum_of
from .slopes import CanonicalSlopes as CanonicalSlopes

register(_InFloat64())
register(_fused.FusedKernels())
