"""Blanks secrets in what is written or printed for people."""

from __future__ import annotations

import re
from typing import Any

BLANK = "***"
# Of a name in lower case without its separators, so that api-key, API_KEY and apiKey are one.
_SECRET = re.compile(
    r"secret|passw|pwd|passphrase|credential|authorization|(token|keys?|auth|pass)$"
)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")


def redact(value: Any) -> Any:
    """Plain data without the values whose names say secret, and without user-info in URIs."""
    if isinstance(value, dict):
        return {key: BLANK if _is_secret(key) else redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return redact_uris(value) if isinstance(value, str) else value


def redact_uris(text: str) -> str:
    """``s3://key:secret@bucket`` becomes ``s3://***@bucket``."""
    return _USER_INFO.sub(f"{BLANK}@", text)


def _is_secret(name: object) -> bool:
    return bool(_SECRET.search(re.sub(r"[^a-z0-9]", "", str(name).lower())))
