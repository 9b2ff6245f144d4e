"""Directories of data sets: those that `save_to_disk` of Hugging Face's `datasets` wrote, and those with Parquet files, such as
snapshots of a repository of the hub."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from fsdpd.faults import Fault

SPLITS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
          "dev": "validation", "test": "test", "testing": "test", "eval": "test", "evaluation": "test"}


def files_of(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of a directory that `save_to_disk` of Hugging Face's `datasets` wrote, or its Parquet files."""
    if (directory / "dataset_dict.json").is_file():
        splits = described_in(directory / "dataset_dict.json", "splits")
        raise Fault(f"{directory}: is a DatasetDict (splits: {', '.join(map(str, splits))}); name the directory of a split, "
                    f"such as {directory / str(splits[0] if splits else 'train')}")
    state = directory / "state.json"
    if state.is_file():
        if described_in(state, "_indices_data_files", []):
            raise Fault(f"{directory}: a dataset with an indices mapping is not supported; save dataset.flatten_indices()")
        try:
            return [directory / str(each["filename"]) for each in described_in(state, "_data_files")]
        except (TypeError, KeyError):
            raise Fault(f"{state}: invalid _data_files (want a list of objects with filename)") from None
    files = sorted(path for path in directory.rglob("*.parquet")
                   if not any(part.startswith(".") for part in path.relative_to(directory).parts))
    if not files:
        raise Fault(f"{directory}: is a directory without state.json and Parquet files; name its files, as in "
                    f"{directory}/*.jsonl")
    by_split = {split_of(path.relative_to(directory)): path for path in files}
    if len(by_split) > 1:
        raise Fault(f"{directory}: Parquet files of several splits ({', '.join(sorted(by_split))}); name the files of one, "
                    f"as in {pattern_of(by_split.get('train') or files[0])}")
    return files


def described_in(path: pathlib.Path, key: str, default: list[Any] | None = None) -> list[Any]:
    try:
        found = json.loads(path.read_text())
        value = found.get(key) if isinstance(found, dict) else None
    except ValueError as error:
        raise Fault(f"{path}: invalid JSON: {error}") from None
    value = default if value is None else value
    if not isinstance(value, list):
        raise Fault(f"{path}: invalid {key} (want a list)")
    return value


def split_of(path: pathlib.Path) -> str:
    """Derives the split of a file from the words of its path, as the Hugging Face hub does."""
    words = re.split(r"[^a-z]+", str(path.with_suffix("")).lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "train")


def pattern_of(path: pathlib.Path) -> str:
    stem = re.split(r"[-_.]?[0-9]", path.name.removesuffix(".parquet"))[0]
    return f"{path.parent / stem}*.parquet" if stem else f"{path.parent}/*.parquet"
