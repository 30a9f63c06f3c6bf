"""Values that change over the steps or iterations of a run: learning rates, and the coefficient of the KL term."""
