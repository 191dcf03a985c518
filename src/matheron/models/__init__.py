"""Models as values: all that paths must know of a Gaussian process, or of several."""

from .latent import LatentGP as LatentGP
from .libraries import describe as describe
from .libraries import is_model as is_model
from .several import GP as GP
from .several import Batch as Batch
from .several import Ensemble as Ensemble
from .several import Outputs as Outputs
from .several import SelectedOutputs as SelectedOutputs
from .several import leaves as leaves
from .single import ExactGP as ExactGP
from .single import cast_model as cast_model
from .sparse import SparseGP as SparseGP
from .streamed import StreamedGP as StreamedGP
