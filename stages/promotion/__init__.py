"""Rules of promotion, rollback and reward alarm, and what a promotion writes: `promoted.json` and the model card."""
