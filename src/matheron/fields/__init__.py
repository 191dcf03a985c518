"""Fields: paths on rasters, meshes and lists of points, of any size, on one machine or many."""

from .averages import block as block
from .averages import given_averages as given_averages
from .drawing import draw_field as draw_field
from .field_data import stations as stations
from .field_models import covariance as covariance
from .field_models import fit_drift as fit_drift
from .field_models import fit_field as fit_field
from .field_models import fit_sphere as fit_sphere
from .kriging import krige as krige
from .kriging import mean as mean
from .simulation import simulate as simulate
from .simulation import with_crs as with_crs
from .sphere import OnSphere as OnSphere
from .sphere import on_plane as on_plane
from .sphere import on_sphere as on_sphere
from .summaries import area_above as area_above
from .summaries import connected_area as connected_area
from .summaries import maximum as maximum
from .summaries import summaries_of as summaries_of
from .summaries import summarise as summarise
from .summaries import volume_above as volume_above
from .variograms import Variogram as Variogram
from .variograms import model_variogram as model_variogram
from .variograms import variogram as variogram
from .writing import write as write
