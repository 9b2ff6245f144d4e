"""Cache of packages from a registry, in the user's cache directory, rebuilt when their pins change."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def made_once(name, pins, make):
    """Returns the directory `name` for the content of the files `pins`. If missing, `make` fills a new directory."""
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
        if not directory.exists():  # Otherwise another test run created it first.
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def pip_install(requirements, directory, *flags):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *flags,
                    "--target", directory, "-r", requirements], check=True)
