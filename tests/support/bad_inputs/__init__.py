"""Bad inputs of every class, made from a seed, and the rule that each answer must obey."""
