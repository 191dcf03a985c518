"""The paper's figures, one module each, and the runner that serves them all.

    an Experiment     its scales, its cases, how one trial is run, how results are reported   (base.py)
      -> trials       independent, each seeded by its own key
      -> workers      processes that run them                                                 (workers.py)
      -> Results      a file that each finished trial is appended to at once                  (results.py)
      -> Report       a table and figures                                                     (report.py, style.py)

`matheron reproduce NAME` runs one (runner.py, command.py). To add an experiment is to write a module with an
`EXPERIMENT`, and to name it here.
"""

from .base import Experiment as Experiment
from .base import Trial as Trial
from .base import experiment as experiment
from .base import names as names
from .runner import run as run
