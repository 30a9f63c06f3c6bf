"""What the flow keeps of long completions between the engine's answer and the stored shard."""

import tracemalloc
from pathlib import Path

import numpy as np

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, Ref, Rollouts
from artifacts.store.store import Store
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import Prompt, ReadyEngine
from stages.sampling.collect import Shards, adopt_rollouts
from stages.sampling.completions import Completion, Completions, from_bytes, to_bytes
from stages.sampling.config import SamplingConfig
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas.call import Answer, Member
from stages.sampling.replicas.window import Window
from tests.support.waiting import wait_until

SAMPLES, TOKENS, LIMIT_BYTES = 16, 32_768, 20_000_000
CONFIG = SamplingConfig(samples_per_prompt=SAMPLES, max_tokens=TOKENS)


def test_a_group_of_16_completions_of_32768_tokens_takes_at_most_20_mb(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_scratch(ScratchModel(layers=1, vocabulary=300), ["Who was it?", "The cook."], tmp_path / "model")
    tokenizer = ChatTokenizer(tmp_path / "model")
    draw = np.random.default_rng(0)
    tokens = [draw.integers(5, 290, TOKENS).astype(np.int32) for _ in range(SAMPLES)]
    logprobs = [-draw.random(TOKENS).astype(np.float32) for _ in range(SAMPLES)]
    said = [Completion(*pair, "length") for pair in zip(tokens, logprobs, strict=True)]
    sent = to_bytes(Completions(said, ["w"]))
    member = Member(ReadyEngine(Endpoint(tmp_path), "w", "0", 0), Window(1))
    address = ArtifactAddress(Store.open(str(tmp_path / "store")), "rollouts", Rollouts)
    attempt = address.attempt(Identity.of("made", 1, {}))
    shards = Shards(attempt, "rollouts", CONFIG, Ref[Checkpoint]("checkpoint", "model", "w"), {"p": 0})
    tracemalloc.start()
    try:
        received = bytes(bytearray(sent))  # the answer as it is read from the socket
        answer = Answer(member, Prompt("p", [1, 2]), from_bytes(received), 0.0, 1.0)
        shards.add(answer.group(CONFIG, tokenizer.decode))
        shards.flush()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LIMIT_BYTES
    stored = adopt_rollouts(attempt, "rollouts", CONFIG)
    assert stored is not None
    assert stored["completion_token_ids"][3].to_list() == tokens[3].tolist()
    assert stored["sampler_logprobs"][15].to_list() == logprobs[15].tolist()


def test_a_group_is_stored_soon_although_no_other_follows(tmp_path: Path) -> None:
    """The next group of a long sampling may take minutes, in which a kill would lose it."""
    address = ArtifactAddress(Store.open(str(tmp_path)), "rollouts", Rollouts)
    attempt = address.attempt(Identity.of("made", 1, {}))
    shards = Shards(attempt, "rollouts", CONFIG, Ref[Checkpoint]("checkpoint", "model", "w"), {"p": 0})
    one = Completion(np.array([5], np.int32), np.array([-1.0], np.float32), "length")
    (tmp_path / "model").mkdir()
    make_scratch(ScratchModel(layers=1, vocabulary=300), ["Who was it?"], tmp_path / "model")
    member = Member(ReadyEngine(Endpoint(tmp_path), "w", "0", 0), Window(1))
    answer = Answer(member, Prompt("p", [1, 2]), from_bytes(to_bytes(Completions([one], ["w"]))), 0.0, 1.0)
    config = CONFIG.model_copy(update={"samples_per_prompt": 1})
    shards.add(answer.group(config, ChatTokenizer(tmp_path / "model").decode))
    wait_until(lambda: adopt_rollouts(attempt, "rollouts", config) is not None, 30.0)
    shards.flush()
