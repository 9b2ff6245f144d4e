"""Job specs that the tests of all clients submit, and the credentials of a client."""

import os

import yaml

from harness.specs import spec


def small(steps=5, **sections):
    """A job for the single node with two slots of these tests."""
    return spec(steps, **{"resources": {"nodes": 1, "ranks_per_node": 2}, **sections})


def failing(directory):
    """A job whose ranks do not find their token file."""
    return small(data={"synthetic": None, "tokens": [{"path": str(directory / "nothing-here"), "type": "u8"}]})


def environment(cluster, person="ada", **more):
    return {**os.environ, "FSDPD_SERVER": cluster.address, **cluster.security.environment(person), **more}


def written(directory, made, name="job.yaml"):
    path = directory / name
    path.write_text(yaml.safe_dump(made))
    return path
