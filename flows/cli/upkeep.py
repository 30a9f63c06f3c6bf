"""`deerstalker prune` and `verify`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from artifacts.errors import BadInputError, IntegrityError, StoreError
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store, Unfinished
from artifacts.verification import Damage
from artifacts.verification import verify as verify_store
from flows.cli.console.options import STORED, Flag, Stored
from flows.cli.console.output import fail_if_damaged, print_damaged_json, print_json, print_line, terminal
from flows.cli.console.stores import filled_store
from flows.config.settings import validate
from flows.report.text.visible import one_line

_UNCHECKED_SHOWN = 20
"""Maximum number of files without a checksum, and of unfinished writes, that `verify` lists; it counts the others."""


def prune(
    runs: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    /,
    *,
    parts: str = "optimizer_state,critic_state",
    keep_last: int = 2,
    keep_every: int = 10,
    keep_for: Literal["regrade", "retrain"] = "retrain",
    comparisons: Flag = False,
    yes: Flag = False,
    options: Stored = STORED,
) -> None:
    """Prints the artifacts whose files the rule does not keep, and with `yes` removes these files.

    The list includes unfinished writes that are older than a day: multipart uploads to S3 and temporary files, whose
    processes were killed.

    Args:
        runs: Names of runs; by default all runs of the store.
        parts: Parts of an iteration to remove, separated by commas: optimizer_state, checkpoint, reference, batch,
            rollouts, critic, critic_state.
        keep_last: Number of a run's last iterations that stay complete.
        keep_every: Every iteration whose number is a multiple of this stays complete; 0 for none.
        keep_for: With retrain, also keep the checkpoints from which the kept iterations started.
        comparisons: Also remove the results of compare.
        yes: Remove the files; without this option they are only listed.
    """
    from flows.upkeep.removal import lost, remove
    from flows.upkeep.retention import Retention, awaited, plan

    settings = {
        "parts": parts.split(","),
        "keep_last": keep_last,
        "keep_every": keep_every,
        "keep_for": keep_for,
        "comparisons": comparisons,
    }
    retention = validate(Retention, settings, "prune")
    store, damaged = filled_store(options.store), list[Damage]()
    removals = plan(store, retention, runs, damaged)
    writes = lost(_unfinished(store, runs) or ())
    listed = [(item.key, item.what, item.size_bytes) for item in removals]
    listed += [(write.key, _what(write), write.size_bytes) for write in writes]
    total = sum(size_bytes for *_, size_bytes in listed)
    if yes:
        remove(store, removals, retention)
        for write in writes:
            store.remove_unfinished(write)
    if options.json:
        rule = retention.model_dump(mode="json")
        removed = [{"key": key, "what": what, "size_bytes": size_bytes} for key, what, size_bytes in listed]
        document = {"store": store.url, "rule": rule, "removed": yes, "size_bytes": total, "removals": removed}
        print_damaged_json(document, store, damaged)
        return
    console = terminal()
    if listed:
        table = Table(title=f"prune {store.url}: {retention}", title_justify="left")
        table.add_column("artifact", overflow="fold")
        table.add_column("what")
        table.add_column("size", justify="right")
        for key, what, size_bytes in listed:
            table.add_row(key, what, _size(size_bytes))
        console.print(table)
    for run in awaited(store, runs):
        print_line(f"{run} is not pruned until `deerstalker iterate {run} --until N` has finished its --refresh")
    outcome = "removed" if yes else "would be removed; --yes removes them"
    counted = f"{len(removals)} artifacts" + (f", {len(writes)} unfinished writes" if writes else "")
    console.print(f"{counted}, {_size(total)}, {outcome}", soft_wrap=True)
    fail_if_damaged(store, damaged, json=False)


def verify(
    address: Annotated[str | None, Parameter(show_default=False)] = None, /, *, options: Stored = STORED
) -> None:
    """Prints the files of a store that are missing, damaged, or without a checksum, and the writes that have not ended.

    Args:
        address: The store; another way to give --store.

    Raises:
        BadInputError: The folder or bucket is not a Deerstalker store.
        IntegrityError: A file is damaged; the list or the document has been printed.
    """
    if address is not None and options.store not in (DEFAULT_STORE, address):
        raise BadInputError("verify", f"two stores, {address} and --store {options.store}", "one")
    store = filled_store(options.store if address is None else address)
    result = verify_store(store, None if options.json else _progress)
    unfinished = _unfinished(store)
    if options.json:
        writes = None if unfinished is None else [asdict(write) for write in unfinished]
        print_json({"store": store.url, **asdict(result), "unfinished": writes})
    else:
        for damage in result.damaged:
            print_line(f"damaged: {damage.file}: {damage.found}; expected {damage.expected}")
        for key in result.unchecked[:_UNCHECKED_SHOWN]:
            print_line(f"no checksum: {key}")
        if len(result.unchecked) > _UNCHECKED_SHOWN:
            print_line(f"no checksum: {len(result.unchecked) - _UNCHECKED_SHOWN} more")
        _print_unfinished(unfinished or ())
        print_line(
            f"{store.url}: {result.artifacts} artifacts ({result.pruned} pruned), {result.files} files, "
            f"{_size(result.size_bytes)}; {len(result.damaged)} damaged, {len(result.unchecked)} without a checksum"
            + (f", {len(unfinished)} unfinished writes" if unfinished else "")
        )
    if result.damaged:
        sys.stdout.flush()
        raise IntegrityError(
            store.url, f"{len(result.damaged)} damaged files, first {result.damaged[0].file}", "",
            "restore them, or delete the folders of their artifacts and run again",
        )  # fmt: skip


def _unfinished(store: Store, runs: Sequence[str] = ()) -> list[Unfinished] | None:
    """Returns the unfinished writes; None, and a line on stderr, if the server does not list them."""
    from flows.upkeep.removal import unfinished_writes

    try:
        return unfinished_writes(store, runs)
    except StoreError as error:
        remedy = "they need the right s3:ListBucketMultipartUploads and a server that lists uploads"
        print(one_line(f"unfinished uploads are not listed: {error.found}; {remedy}"), file=sys.stderr)
        return None


def _what(write: Unfinished) -> str:
    return "unfinished upload" if write.upload else "unfinished file"


def _print_unfinished(writes: Sequence[Unfinished]) -> None:
    for write in writes[:_UNCHECKED_SHOWN]:
        print_line(f"{_what(write)}: {write.key}: {_size(write.size_bytes)}, {write.age_s / 3600:.1f} hours old")
    if len(writes) > _UNCHECKED_SHOWN:
        print_line(f"unfinished: {len(writes) - _UNCHECKED_SHOWN} more")
    if writes:
        print_line("unfinished writes are under way or were killed; `prune --yes` removes those older than a day")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 50 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} files" + ("\n" if done == total else ""))


def _size(size_bytes: int) -> str:
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
