"""Opens the store of a command that only reads."""

from artifacts.errors import BadInputError
from artifacts.layout import TOPS, is_ours
from artifacts.store.store import Store


def filled_store(address: str) -> Store:
    """Opens a store that is not empty, for reading only.

    Raises:
        BadInputError: There is no such folder, or the address does not name a store: there is no artifact and no frozen
            recipe.
        StoreError: The store cannot be read.
    """
    store = Store.open(address, writable=False)
    if not any(is_ours(key) for top in TOPS for key in store.walk(top)):
        raise BadInputError(
            store.url, "no run, no puzzle set and no model", "a store that `train` or `puzzles make` has filled",
            "check the address",
        )  # fmt: skip
    return store
