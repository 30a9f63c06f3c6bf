"""How often a view lists a store: S3 takes a request for each thousand keys."""

from collections.abc import Callable

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.lookup.history import overview, read_run, run_names
from tests.support.fault_proxy import fault_proxy
from tests.support.made_run import make_run
from tests.support.servers import BUCKET, S3Server

PAGE_KEYS = 10


def test_a_run_is_listed_once_and_a_list_of_runs_does_not_list_what_is_in_them(moto: S3Server) -> None:
    requests: list[str] = []

    def note(method: str, path: str) -> None:
        requests.append(f"{method} {path}")

    with fault_proxy(moto.url, note) as proxy:
        options = moto.options(endpoint_url=proxy.url, listing_page_keys=PAGE_KEYS)
        store = Store.open(f"s3://{BUCKET}/listed", options=options)
        layout = make_run(store, iterations=4)

        def pages(look: Callable[[], object]) -> int:
            requests.clear()
            look()
            return sum("list-type=2" in request for request in requests)

        of_the_run = -(-len(store.list(RunLayout("made").root)) // PAGE_KEYS)
        assert of_the_run > 4
        assert pages(lambda: read_run(store, layout.run, [])) == of_the_run
        assert pages(lambda: overview(store, [])) == 2, "the runs, and the iterations of the one"
        assert pages(lambda: run_names(store)) == 1
