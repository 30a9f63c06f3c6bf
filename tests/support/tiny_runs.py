"""Settings that make of the tiny recipe a run of each kind, for the stories of a kind and for the campaign of kills."""

SHORTEST = (
    "puzzles.train=4096", "sample.puzzles_per_iteration=4", "sample.sampling.samples_per_prompt=4",
    "sample.sampling.max_tokens=24", "pack.updates=1", "evaluate.puzzles=2", "evaluate.sampled.max_tokens=24",
    "final.puzzles=2",
)  # fmt: skip
"""Stages as short as they get, for runs of many iterations."""
FIRST = ("iterations=1", "sample.puzzles_per_iteration=16", "warm_start.epochs=16")
"""A run named `first` that stores rollouts for the critic of another one."""
FROM_FIRST = (
    *FIRST[:2], "warm_start=null", 'model={source="checkpoint", name="first@1"}',
    'grade.advantage={baseline="none", scale="none"}',
)  # fmt: skip
"""A run that goes on with the model of `first`, whose advantages a critic can make."""
VALUE = "value={learning_rate=1e-3, updates=8, %s}"
CRITIC = (
    *FROM_FIRST, VALUE % 'epochs=16, pretrain={run="first", first=1, last=1, updates=8, epochs=16}',
    'rate={models=[{name="start"}], sampling={samples_per_prompt=2, max_tokens=48}}',
    'sample.order={by="ascending", column="accuracy:start"}',
)  # fmt: skip
"""A critic that learns from the rollouts of `first` before it judges, and puzzles that are rated."""
DISTILLED = (
    "iterations=1", "warm_start.epochs=16", "distil.sample.puzzles_per_iteration=48",
    "distil.sample.sampling={samples_per_prompt = 8, max_tokens = 64}", "distil.texts.keep=best",
    "distil.sample.order={by = 'ascending', column = 'num_clues'}",
    "distil.sample.where=[{all = [{column = 'num_clues', above = 0}]}]",
    "distil.sft={texts_per_step = 8, epochs = 2, learning_rate = 1e-3}", "teach.hint=derivation",
)  # fmt: skip
"""Texts of a teacher, and a teacher of tokens."""
PHASES = (
    "iterations=4",
    "sample.puzzles_per_iteration=16",
    "finetune.reference=base",
    'rate={models=[{name="start"}, {name="run"}], sampling={samples_per_prompt=2, max_tokens=32}}',
    'phases=[{name="short", iterations=2, sample={sampling={max_tokens=48},'
    ' order={by="ascending", column="num_clues"}}},'
    ' {name="long", reference="phase_start", optimizer="fresh", sample={order={by="pools"},'
    ' where=[{all=[{column="accuracy:start", below=1.0}]}]}}]',
)
"""Two phases, rated puzzles and pools."""
AHEAD = ("iterate_ahead=1", "iterations=3")
"""The next iteration is sampled while one is trained on."""
LORA = ("finetune.trainable.parameters=lora", "finetune.trainable.rank=4", "finetune.learning_rate=1e-2")
TOOL = (
    "warm_start.text=transcripts", "warm_start.epochs=16", "warm_start.row_tokens=1024", "pack.row_tokens=1024",
    "sample.sampling.tool_calls=2", "model.max_positions=2048",
)  # fmt: skip
"""Completions that call the environment's solver."""
README_TASK = (
    "iterations=1", "model.source=scratch", "model.hidden=32", "model.heads=1", "model.kv_heads=1", "model.layers=1",
    "model.intermediate=64", "puzzles.train=64", "puzzles.val=8", "puzzles.test=8", "sample.puzzles_per_iteration=16",
    "sample.sampling.samples_per_prompt=8", "sample.sampling.max_tokens=64", "evaluate.puzzles=8",
    "evaluate.sampled.samples_per_prompt=2", "evaluate.sampled.max_tokens=16", "final.puzzles=8",
    "final.sampled.samples_per_prompt=2", "final.sampled.max_tokens=16",
)  # fmt: skip
"""The README's own task with a tiny model."""
SLOW_GRADES = """
import time
fast = Countdown.grade
def slowly(self, completion, item):
    time.sleep(0.03)  # time to be killed in
    return fast(self, completion, item)
Countdown.grade = slowly
"""
"""The end of the README's own task, with time to be killed while it grades."""
