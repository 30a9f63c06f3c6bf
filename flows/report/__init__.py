"""Views of a run: figures, plots, pages, terminal, trackers. Views only read; they do not affect a run."""
