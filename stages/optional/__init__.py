"""Stages that only some recipes need.

They are for curricula (`rate`, `update_rates`, `advance`), texts and teachers (`distil`, `sft`, `teach`), critics
(`pretrain`, `value`), adapters from outside the store (`adopt`) and overlong prompts (`drop_overlong`).
"""
