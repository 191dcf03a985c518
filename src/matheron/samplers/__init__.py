"""The paper's competitors, and the posterior's moments that all are measured against."""

from .posterior import Moments as Moments
from .posterior import moments as moments
