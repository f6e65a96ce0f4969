"""Parts that come with this package and are found by entry points, like those of others."""
