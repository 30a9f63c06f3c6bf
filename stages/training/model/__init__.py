"""The policy on its device: modules, attention, adapters, master weights."""
