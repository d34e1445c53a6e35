"""The cluster as a graph: vertices, directed links, routes."""
