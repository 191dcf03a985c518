"""Functions that travel: as a plain torch module, as ONNX and `torch.export` files, as numbers for `matheron_portable`.
"""

from .files import FORMAT as FORMAT
from .files import export as export
from .flatten import to_module as to_module
from .module import FunctionModule as FunctionModule
