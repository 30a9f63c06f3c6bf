"""The base class of JSON documents whose fields are fixed."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A JSON document. It is immutable, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
