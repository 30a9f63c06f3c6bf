"""The checks of `deerstalker doctor`: this machine, the store and Prefect, and whether a recipe fits.

`facts`, `store_facts` and `flows.config.model_size` gather facts, `checks` and `fit` judge them, and
`flows.cli.doctor` prints.
"""
