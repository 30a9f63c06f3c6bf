"""An engine that runs elsewhere: somebody else starts and ends it."""

from __future__ import annotations

import http.client
import threading
from collections import defaultdict
from http import HTTPStatus
from pathlib import Path

from artifacts.errors import BadInputError, DeerstalkerError, TransientError
from stages.models.adapters import has_adapter
from stages.sampling import engine_key
from stages.sampling.client import ReadyEngine, ended_error
from stages.sampling.counts import COUNTS_PATH
from stages.sampling.endpoint import Endpoint, EndpointError
from stages.sampling.replicas import weight_exchange
from stages.sampling.replicas.weight_exchange import SHORT_TIMEOUT_S

_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By address: this process loads one checkpoint at a time, also after `ExternalEngine.end`."""


class ExternalEngine:
    """A server at a URL that somebody started with `python -m stages.sampling.server`.

    Args:
        endpoint: Address of its HTTP interface.
        seed: Number that is recorded as the seed of its random generator.
    """

    is_child = False

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        self.endpoint, self._seed = endpoint, seed
        self._source: ReadyEngine | None = None
        self._ended = False

    def end(self) -> None:
        """Makes loads fail that have not begun, so that none comes after those of another object for the engine."""
        self._ended = True

    def serve(self, model_dir: Path, digest: str) -> ReadyEngine:
        """Loads the weights in place, or does nothing if the engine has them, and returns the source to sample from.

        Args:
            model_dir: Checkpoint folder, at a path that the engine can read.
            digest: Digest of its weights.

        Raises:
            BadInputError: The engine refuses the weights or the key, or would keep an old output head after a reload.
            TransientError: The engine could not be reached.
            DeerstalkerError: `end` was called.
        """
        with _turns[str(self.endpoint.address)]:
            if self._ended:
                raise ended_error()
            if self._source is None or self._source.weights_digest != digest:
                self._source = None
                self._source = self._load(model_dir, digest)
            return self._source

    def failure(self) -> str | None:
        """Returns None, because the engine's process cannot be observed from here."""
        return None

    def lost(self, reason: str) -> DeerstalkerError:
        """Forgets the weights of the engine and returns the error that describes its loss."""
        self._source = None
        return TransientError(f"engine {self.endpoint.address}", reason, "an engine that stays up", "see its own log")

    def _load(self, model_dir: Path, digest: str) -> ReadyEngine:
        where, endpoint = f"engine {self.endpoint.address}", self.endpoint
        try:
            if has_adapter(model_dir):
                remedy = "leave external_urls empty, or train with finetune.trainable.merge = true"
                raise BadInputError(where, "a checkpoint with a LoRA adapter", "full weights", remedy)
            endpoint.call("GET", "/v1/models", timeout_s=SHORT_TIMEOUT_S)  # fails if the engine requires a key
            if weight_exchange.keeps_stale_head(endpoint, model_dir):
                combination = "a CPU engine of vLLM and a model whose output head shares the embedding"
                remedy = "leave external_urls empty: vLLM 0.32 would continue with the old head after a reload"
                raise BadInputError(
                    where, combination, "an engine on a GPU, or one that the flow starts itself", remedy
                )
            weight_exchange.load(endpoint, model_dir)
            weight_exchange.set_weight_version(endpoint, digest)
            endpoint.call("GET", COUNTS_PATH, timeout_s=SHORT_TIMEOUT_S)
            version = endpoint.call("GET", "/version", timeout_s=SHORT_TIMEOUT_S)["version"]
        except weight_exchange.ReloadRefusedError as error:
            expected = "vLLM 0.32 with VLLM_SERVER_DEV_MODE=1 and a view of the checkpoint folder"
            raise BadInputError(where, f"it refused the weights of {model_dir}: {error}", expected) from error
        except (OSError, EndpointError, http.client.HTTPException) as error:
            if isinstance(error, EndpointError) and error.status in engine_key.REFUSED:
                raise engine_key.refused_key(endpoint, error.status) from error
            if isinstance(error, EndpointError) and error.status == HTTPStatus.NOT_FOUND:
                expected = "a server with the routes of Deerstalker and of vLLM's development mode"
                remedy = "start it by `python -m stages.sampling.server` with VLLM_SERVER_DEV_MODE=1"
                raise BadInputError(where, str(error), expected, remedy) from error
            raise TransientError(where, f"unreachable: {error!r}", "an engine that answers", "start it") from error
        return ReadyEngine(endpoint, digest, str(version), self._seed)
