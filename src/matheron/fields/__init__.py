"""Fields: paths on rasters, meshes and lists of points, of any size, on one machine or many."""

from .simulate import simulate as simulate
from .simulate import with_crs as with_crs
from .write import write as write
