"""Reader of a package, the file that `fsdpctl model export` writes: its manifest becomes model.package of a spec."""

from __future__ import annotations

import hashlib
import json
import zipfile

from google.protobuf import json_format

from fsdpd.v1.job_pb2 import Package
from fsdpd.v1.package_pb2 import PackageManifest

SCHEMA = 1
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 16 << 20


def read_package(path: str) -> Package:
    """Returns the fields that a spec takes from the package. Raises FileNotFoundError, or ValueError with the reason."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > _MAX_MANIFEST_BYTES:
                raise ValueError(f"{path}: {_MANIFEST} is too large")
            text = archive.read(_MANIFEST)
        schema = int(json.loads(text).get("schema", 0))
        if schema > SCHEMA:
            raise ValueError(f"{path}: has a newer format (got schema {schema}, want {SCHEMA}); update fsdpd")
        package = json_format.Parse(text, PackageManifest()).model
    except (zipfile.BadZipFile, KeyError, AttributeError, json.JSONDecodeError, json_format.ParseError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path}: is not a package of fsdpctl model export, or is incomplete: {error}") from error
    package.path = path
    package.digest = hashlib.sha256(text).hexdigest()
    return package
