"""Prefect's server and worker as processes of this program, and access to external servers."""
