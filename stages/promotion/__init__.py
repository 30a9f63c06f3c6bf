"""The rules of promotion and rollback, and the files that a promotion writes: `promoted.json` and the model card."""
