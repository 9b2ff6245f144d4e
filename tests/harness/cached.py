"""What tests need from a package registry: kept in the user's cache, and made anew where its pins have changed."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys


def made_once(name, pins, make):
    """The folder `name` for what the files `pins` say. Where it is not there, `make` fills the folder that it is given."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in pins)).hexdigest()[:12]
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / f"fsdpd/{name}-{digest}"
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        make(partial)
        partial.rename(folder)
    except OSError:
        if not folder.exists():  # Otherwise another test run was first.
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def pip_install(requirements, folder, *flags):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *flags,
                    "--target", folder, "-r", requirements], check=True)
