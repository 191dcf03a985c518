"""Models of Gaussian process libraries as snapshots: the only place that imports them or knows their types."""
