"""What a user holds: prior path + update path."""

from .conditioning import at_tasks as at_tasks
from .conditioning import update_given as update_given
from .conditioning import values_at as values_at
from .joined import AnyPaths as AnyPaths
from .joined import BatchPaths as BatchPaths
from .joined import EnsemblePaths as EnsemblePaths
from .joined import OutputPaths as OutputPaths
from .joined import SelectedPaths as SelectedPaths
from .paths import Paths as Paths
from .prior import PriorPaths as PriorPaths
from .update import Inducing as Inducing
from .update import UpdatePaths as UpdatePaths
