"""Everything that exists because of Prefect: tasks, GPU permits, artifacts in its interface, installation."""
