"""What tests need from a package registry: kept in the user's cache, and made anew where its pins have changed."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def made_once(name, pins, make):
    """The directory `name` for what the files `pins` say. Where it is not there, `make` fills the directory that it is given."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in pins)).hexdigest()[:12]
    directory = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / f"fsdpd/{name}-{digest}"
    if directory.exists():
        return directory
    partial = directory.with_name(f"{directory.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        make(partial)
        partial.rename(directory)
    except OSError:
        if not directory.exists():  # Otherwise another test run was first.
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def pip_install(requirements, directory, *flags):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *flags,
                    "--target", directory, "-r", requirements], check=True)
