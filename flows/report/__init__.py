"""Views of a run: figures, plots, pages, terminal, trackers. A view decides nothing."""
