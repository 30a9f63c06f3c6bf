"""Verbs that only some recipes need, for curricula (`rate`, `fold`, `advance`), teachers (`distil`, `sft`, `teach`) and
value models (`pretrain`, `value`)."""
