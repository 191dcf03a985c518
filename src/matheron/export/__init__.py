"""Functions that travel: plain torch modules, ONNX and `torch.export` files, and numbers for `matheron_portable`."""

from .files import FORMAT as FORMAT
from .files import export as export
from .flatten import to_module as to_module
from .module import FunctionModule as FunctionModule
