"""Fields of a job spec that release 0.1 had under another name, as in base/spec_text/renamed_fields.cc."""

from __future__ import annotations

RENAMED_FIELDS = {
    ("Data", "ignored_token"): "ignore_index",
    ("InitialValues", "deviation"): "std",
    ("InitialValues", "embedding_deviation"): "embedding_std",
    ("Plugin.Unit", "borrows"): "tied_to",
    ("Plugin.Unit", "kept_values"): "saved_values",
    ("Plugin.Unit", "kept_values_selective"): "saved_values_selective",
}


def _normalized(key: str) -> str:
    return key.replace("_", "").lower()


def current_name(message: str, key: str) -> str:
    """Returns the current name of a field that had the name `key` (also in camelCase), or "". `message` is a full
    name."""
    return next((name for (owner, before), name in RENAMED_FIELDS.items()
                 if message == f"fsdpd.v1.{owner}" and _normalized(before) == _normalized(key)), "")
