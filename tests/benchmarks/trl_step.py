"""One optimizer step of TRL's GRPOTrainer, timed: the child process of `tests.benchmarks.versus_trl`.

`python trl_step.py PLAN RESULT`, both JSON files, in an environment of its own that knows nothing of Deerstalker.

Settings: TRL's defaults stay (float32 weights, as our trainer has them; fused AdamW, SDPA, 8 completions a pass,
log-probabilities of completions only, no reference model; vLLM in TRL's process if the plan says so). Only settings
that make the work equal or TRL
faster differ: bf16 autocast where our trainer computes in bf16, no gradient checkpointing, completions of full length,
nothing saved or logged.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class TimedTrainer(GRPOTrainer):
    """Adds up what an iteration spends before its first training pass, and of that on generation."""

    rollout_s = generation_s = 0.0

    def _generate_and_score_completions(self, *inputs: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        rollouts = super()._generate_and_score_completions(*inputs, **keywords)
        self.rollout_s += time.perf_counter() - started
        self.prompt_tokens = rollouts["prompt_mask"].sum(1).tolist()
        self.completion_tokens = rollouts["completion_mask"].sum(1).tolist()
        return rollouts

    def _generate_single_turn(self, *inputs: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        generated = super()._generate_single_turn(*inputs, **keywords)
        self.generation_s += time.perf_counter() - started
        return generated


class StepClock(TrainerCallback):
    """Wall time of the optimizer step, generation included."""

    seconds = 0.0

    def on_step_begin(self, *inputs: Any, **keywords: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *inputs: Any, **keywords: Any) -> None:
        self.seconds = time.perf_counter() - self._started


def letters(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """A reward that costs nothing and differs within a group: how many different characters were used."""
    return [len(set(messages[0]["content"])) / 100 for messages in completions]


def warm_up(model: torch.nn.Module, bf16: bool) -> None:
    """A short pass there and back, so that what torch does only once is done; it leaves nothing behind."""
    device = next(model.parameters()).device
    tokens = torch.arange(10, 26, device=device)[None]
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        model(tokens, labels=tokens).loss.backward()
    model.zero_grad(set_to_none=True)


def main(plan: dict[str, Any], scratch: Path) -> dict[str, Any]:
    torch.set_num_threads(plan["threads"])
    completions = len(plan["prompts"]) * plan["samples"]
    batch = min(plan["batch"], completions)
    config = GRPOConfig(
        output_dir=str(scratch / "trl-output"),
        model_init_kwargs={"dtype": plan["weights"]},
        use_cpu=plan["device"] == "cpu",
        use_vllm=plan["vllm"] is not None,
        vllm_mode=plan["vllm"] or "colocate",
        vllm_server_base_url=plan["server"],
        vllm_gpu_memory_utilization=0.45,  # as our profile `cuda`
        bf16=plan["bf16"],
        seed=plan["seed"],
        gradient_checkpointing=plan["gradient_checkpointing"],
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=completions // batch,
        num_generations=plan["samples"],
        max_completion_length=plan["tokens"],
        generation_kwargs={"min_tokens" if plan["vllm"] else "min_new_tokens": plan["tokens"]},
        learning_rate=plan["learning_rate"],
        lr_scheduler_type="constant",
        max_steps=1,
        shuffle_dataset=False,
        dataloader_pin_memory=plan["device"] != "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in plan["prompts"]]
    clock = StepClock()
    trainer = TimedTrainer(
        model=plan["model"], reward_funcs=letters, args=config, train_dataset=Dataset.from_list(rows), callbacks=[clock]
    )
    warm_up(trainer.model, plan["bf16"])
    loaded_s = time.perf_counter() - STARTED
    trainer.train()
    return {
        "versions": {name: version(name) for name in ("trl", "torch", "transformers", "accelerate")},
        "settings": {
            "bf16": config.bf16,
            "weights": str(trainer.model.dtype),
            "attention": trainer.model.config._attn_implementation,
            "gradient_checkpointing": config.gradient_checkpointing,
            "optimizer": str(config.optim),
            "batch": batch,
            "accumulated": config.gradient_accumulation_steps,
            "vllm": config.use_vllm,
            "threads": torch.get_num_threads(),
        },
        "prompt_tokens": trainer.prompt_tokens,
        "completion_tokens": trainer.completion_tokens,
        "start_s": loaded_s,
        "iteration_s": clock.seconds,
        "generation_s": trainer.generation_s,
        "training_s": clock.seconds - trainer.rollout_s,
    }


if __name__ == "__main__":
    plan_file, result_file = map(Path, sys.argv[1:])
    result_file.write_text(json.dumps(main(json.loads(plan_file.read_text()), result_file.parent)))
