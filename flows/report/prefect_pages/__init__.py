"""Pages in Prefect's own interface."""
