"""What is shown of a child process's log: the reasons, not the frames."""

from artifacts.local.log_tail import TAIL_LINES, tail_of

_VLLM = """\
(EngineCore pid=812) INFO 11-26 12:01:03 [core.py:93] Initializing a V1 LLM engine
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866] EngineCore failed to start.
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866] Traceback (most recent call last):
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866]   File "/x/vllm/v1/engine/core.py", line 857, in run_engine_core
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866]     engine_core = EngineCoreProc(*args, **kwargs)
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866]                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866] ValueError: 2 validation errors for ModelConfig
(EngineCore pid=812) ERROR 11-26 12:01:09 [core.py:866]   Value error, the quantization is unheard of
(EngineCore pid=812) Process EngineCore:
(EngineCore pid=812) Traceback (most recent call last):
(EngineCore pid=812)   File "/x/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore pid=812)     self.run()
(EngineCore pid=812) ValueError: 2 validation errors for ModelConfig
(APIServer pid=801) Traceback (most recent call last):
(APIServer pid=801)   File "<frozen runpy>", line 198, in _run_module_as_main
(APIServer pid=801) RuntimeError: Engine core initialization failed. See root cause above.
"""
_TORCH = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/x/worker.py", line 40, in main
[rank0]:     serve(queue, rank)
[rank0]:     ~~~~~^^^^^^^^^^^^^
[rank0]: torch.distributed.DistBackendError: NCCL error: unhandled system error
[rank0]: Exception raised from create at /pytorch/NCCLUtils.cpp:94 (most recent call first):
[rank0]: frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in /x/libc10.so)
[rank0]: frame #1: <unknown function> + 0x1 (0x7f in /x/libtorch_cuda.so)

[rank0]: During handling of the above exception, another exception occurred:
[rank0]:[W1126 12:01:09.123 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called
"""


def test_the_tail_names_the_reason_and_no_frame() -> None:
    assert tail_of(_VLLM) == (
        "Initializing a V1 LLM engine",
        "EngineCore failed to start.",
        "Value error, the quantization is unheard of",
        "Process EngineCore:",
        "ValueError: 2 validation errors for ModelConfig",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    assert tail_of(_TORCH) == (
        "torch.distributed.DistBackendError: NCCL error: unhandled system error",
        "Warning: destroy_process_group() was not called",
    )


def test_the_tail_is_short_and_never_empty_beside_a_log() -> None:
    assert tail_of("\n".join(f"line {number}" for number in range(1000))) == tuple(
        f"line {number}" for number in range(1000 - TAIL_LINES, 1000)
    )
    assert tail_of("same\n" * 50) == ("same",)
    assert max(map(len, tail_of("x" * 100_000))) <= 240
    assert tail_of('  File "a.py", line 1\n') == ('File "a.py", line 1',)
    assert tail_of(" \n\n") == ()
