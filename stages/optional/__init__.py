"""Stages that only some recipes need, for curricula (`rate`, `update_rates`, `advance`), teachers (`distil`, `sft`,
`teach`) and critics (`pretrain`, `value`)."""
