"""The foundation of all rooms: values, checks of arguments, saving, memory for blocks, progress, non-uniform FFTs."""

from .boxes import as_box as as_box
from .checks import ArrayLike as ArrayLike
from .checks import as_array as as_array
from .checks import as_tensor as as_tensor
from .checks import per_dimension as per_dimension
from .checks import positive as positive
from .saving import FORMAT as FORMAT
from .saving import FileError as FileError
from .saving import load as load
from .saving import read_notes as read_notes
from .saving import save as save
from .sites import Sites as Sites
from .sites import as_tasks as as_tasks
from .value import REGISTRY as REGISTRY
from .value import Json as Json
from .value import Parts as Parts
from .value import Value as Value
