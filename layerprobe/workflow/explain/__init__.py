"""explain: why a query of a run and its nearest neighbours are similar, from its images and weights."""
