"""The rule of promotion: a candidate against what stands, and whether a learning curve has fallen."""
