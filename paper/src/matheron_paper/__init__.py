"""The paper's figures, one module each, and the runner that serves them all.

    an Experiment     its scales, its cases, how one trial is run, how results are reported   (base.py)
      -> trials       independent, each seeded by its own key
      -> workers      processes that run them                                                 (workers.py)
      -> Results      a file that each finished trial is appended to at once                  (results.py)
      -> Report       a table and figures                                                     (report.py, style.py)

`matheron reproduce NAME` runs one (runner.py, command.py). To add an experiment is to write a module with an
`EXPERIMENT`, and to name it in `base.MODULES`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Imported when first asked for: the command line reads the options of `matheron reproduce` without importing torch.
if TYPE_CHECKING:
    from .base import Experiment as Experiment
    from .base import Trial as Trial
    from .base import experiment as experiment
    from .base import names as names
    from .runner import run as run
else:
    _PLACES = {"Experiment": "base", "Trial": "base", "experiment": "base", "names": "base", "run": "runner"}

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_PLACES[name]}", __name__), name)
