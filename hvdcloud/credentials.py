"""Google credentials that will not do: what to type next."""

from __future__ import annotations

import os

KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


def login_hint() -> str:
    """How to get other Application Default Credentials. Where a key is named, those of `gcloud auth` do not count.

    https://cloud.google.com/docs/authentication/application-default-credentials#order
    """
    if KEY_VARIABLE in os.environ:
        return f"name another key in {KEY_VARIABLE}, or unset it and gcloud auth application-default login"
    return "gcloud auth application-default login"
