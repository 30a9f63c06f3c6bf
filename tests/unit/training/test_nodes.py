"""A trainer of two nodes, started as the manifests start it: a node that loses a process costs no finished step."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.training.worker_group.hardware import TrainHardware
from tests.support.hosts import Host, hosts
from tests.support.kustomize import FOLDER, find, render
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
FOLDER_OF_PODS = "/shared/groups"
LIMIT_S = 300.0


@pytest.fixture
def pair() -> Iterator[list[Host] | None]:
    """Two hosts with a network between them; None where namespaces are refused, and the nodes meet on loopback."""
    try:
        with hosts("first", "second") as made:
            yield made
    except (OSError, subprocess.CalledProcessError):
        yield None


def words_of_the_job(shared: Path) -> list[str]:
    """The arguments of the pods of the Job in the overlay for 64 GPUs, with this Python and this folder."""
    job = find(render(FOLDER / "overlays" / "64-gpus"), "Job", "trainer")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell, option, line = container["args"]
    assert line.count(FOLDER_OF_PODS) == line.count("exec python ") == 1
    return [shell, option, line.replace(FOLDER_OF_PODS, str(shared)).replace("exec python ", f"exec {sys.executable} ")]


def on(host: Host, words: list[str], boot_id: Path) -> list[str]:
    """A command line on a host with another boot id, so that its processes do not count as this machine's."""
    boot_id.write_text(host.name)
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return host.command(["unshare", "--mount", "sh", "-c", script, str(boot_id), *words])


@pytest.mark.release
def test_a_trainer_of_two_nodes_goes_on_after_a_process_of_the_second_was_killed(
    tmp_path: Path, pair: list[Host] | None
) -> None:
    """Two nodes with two processes each. With hosts, the first notices by the network only, as on another machine."""
    shared = tmp_path / "groups"
    hardware = TrainHardware(
        nodes=2, processes=2, threads=1, compute_dtype="fp32", micro_batch_tokens=30, checkpoint_every_s=0.0,
        rendezvous=pair[0].address if pair else "127.0.0.1", shared_dir=shared,
    )  # fmt: skip
    first = [sys.executable, "-m", "tests.support.finetune_on_nodes", str(tmp_path), hardware.model_dump_json()]
    second = words_of_the_job(shared)
    environment = dict(os.environ) | {"TMPDIR": str(tmp_path)}

    def said() -> str:
        return (tmp_path / "node.log").read_text()

    with (tmp_path / "node.log").open("w+b") as log:
        node = subprocess.Popen(
            on(pair[1], second, tmp_path / "boot_id") if pair else second,
            env=environment | {"JOB_COMPLETION_INDEX": "0"}, cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            done = subprocess.run(
                pair[0].command(first) if pair else first,
                env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{done.stderr}\n{said()}"
            wait_until(lambda: said().count("left it") == 2, LIMIT_S, said)  # it looks for the end now and then
            assert node.poll() is None, said()
        finally:
            node.kill()
            node.wait()
    report = json.loads(done.stdout.splitlines()[-1])
    (step,) = report["kept"]
    assert 1 <= step < report["steps"]
    assert report["done"] == list(range(step + 1, report["steps"] + 1)), "what was done is not done again"
    assert report["same_weights"] and report["same_state"] and report["same_metrics"], report
    assert said().count("joining") == said().count("left it") == 2, said()
    assert pair is None or pair[1].address in report["reason"], "the network told it"
