"""Prefect's server and worker as our own processes, and access to servers of others."""
