"""The base class of JSON documents whose fields are fixed."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A JSON document. It does not change once it is made, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
