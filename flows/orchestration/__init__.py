"""All code for Prefect: tasks, GPU permits, artifacts in its interface, installation."""
