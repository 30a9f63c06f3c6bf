"""Views in the terminal: the progress of a run, and the tables of a benchmark."""
