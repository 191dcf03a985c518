"""What every run of pytest needs, whichever files it is given: one thread per process."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when torch is imported
