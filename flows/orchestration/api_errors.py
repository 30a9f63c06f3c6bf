"""The errors of a call to Prefect's API."""

import httpx
from prefect.exceptions import PrefectException

API_ERRORS = (httpx.HTTPError, PrefectException)
"""Raised if the server is gone, refuses a request, or sends a reply that the client does not understand."""
