"""Registry packages of the commit-tier tests, installed once into the user's cache by `deploy/setup --tools`. The tests run
without the user's registry settings (proxies, certificates) and need no network."""

import os
import subprocess

from harness import datasets_package, grafana, manifests
from harness.programs import ROOT

if __name__ == "__main__":
    datasets_package.installed()
    grafana.installed()
    manifests.validator()
    # As the tests have it: no settings that put modules elsewhere.
    environment = {name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOMODCACHE", "GOPATH")}
    subprocess.run([ROOT / ".tools/bin/go", "mod", "download"], cwd=ROOT / "clients/go", check=True,
                   env={**environment, "GOTOOLCHAIN": "local"})
