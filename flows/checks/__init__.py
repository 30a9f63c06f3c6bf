"""Refuses recipes and profiles before a run stores anything: every check that needs more than one section.

| module | refuses |
|---|---|
| `learning`, `soundness` | settings with which a new run cannot learn as intended |
| `named` | a teacher, a model or an iteration that the store does not have |
| `columns` | a puzzle order or filter that reads a missing column or leaves too few puzzles |
| `judge` | a judge whose server refuses the key or lacks the model |
| `rows` | rows into which the longest prompt with its completion does not fit |
| `fitting` | a model that does not divide among the GPUs, or does not fit on them |
| `compared` | candidates and runs of `compare` that cannot be compared |
| `overlap` | a role, or a profile under which sampling and training cannot overlap |
| `devices` | a profile whose GPUs, drivers, packages or memory this machine lacks |

Settings of a recipe that contradict one another are refused wherever the recipe is read, by the validators of
`flows.config.recipe.Recipe` and of its sections.
"""
