"""The errors of a call to Prefect's API."""

import httpx
from prefect.exceptions import PrefectException

API_ERRORS = (httpx.HTTPError, PrefectException)
"""The server is gone, refuses, or answers with something that the client does not understand."""
