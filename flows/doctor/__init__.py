"""What `deerstalker doctor` looks at: facts of this machine, what they mean, and whether a recipe fits them.

`facts`, `store_facts` and `model_size` look, `checks` and `fit` judge; `flows.cli.doctor` shows.
"""
