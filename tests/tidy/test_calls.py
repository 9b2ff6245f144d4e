"""Limits and deadlines of clients: clients/calls.json defines them, and fsdpctl, which is built without it, has the same."""

import json
import re

import pytest

from harness.programs import ROOT
from tidy import repository
from tidy.test_proto import METHOD, SERVICE, comments, contracts  # noqa: F401: a fixture

CALLS = json.loads((ROOT / "clients/calls.json").read_text())


def constant(path, name):
    """Value of a C++ constant: 64 << 10, 10'000, absl::Seconds(10)."""
    value, = re.findall(rf"\b{name} = (?:absl::\w+\()?([\d' <]+)\)?;", (ROOT / path).read_text())
    number, _, shift = value.replace("'", "").partition("<<")
    return int(number) << int(shift or 0)


def test_fsdpctl_constants_match_calls_json():
    client = "client/connect/coordinator_client.cc"
    assert CALLS["max_message_bytes"] == constant("base/limits.h", "kMaxRpcBytes")
    assert CALLS["max_metadata_bytes"] == constant(client, "kMaxMetadataBytes")
    assert CALLS["keepalive_seconds"] * 1000 == constant(client, "kKeepaliveMs")
    assert CALLS["keepalive_timeout_seconds"] * 1000 == constant(client, "kKeepaliveMs")
    assert CALLS["deadline_seconds"]["default"] == constant("client/connect/coordinator_client.h", "call_timeout")
    searches = constant("client/connect/coordinator_client.h", "search_timeout")
    assert CALLS["deadline_seconds"] == {"default": CALLS["deadline_seconds"]["default"], "SearchPlans": searches}
    assert CALLS["follow_reconnect_for_seconds"] == constant("client/connect/job_follow.h", "reconnect_for")
    assert CALLS["follow_pause_ms"] == constant("client/connect/job_follow.h", "pause")


def test_coordinator_accepts_the_keepalive_interval():
    assert CALLS["keepalive_seconds"] * 1000 >= constant("coordinator/serve/public_server.cc", "kMinPingIntervalMs")


def test_only_idempotent_calls_are_retried(contracts):  # noqa: F811
    file = next(file for file in contracts if file.name == "fsdpd/v1/coordinator.proto")
    said, service = comments(file), file.service[0]
    idempotent = {method.name for number, method in enumerate(service.method) if not method.server_streaming
                  and re.search(r"(?<!Not )\bIdempotent\b", said[(SERVICE, 0, METHOD, number)])}
    config, = CALLS["service_config"]["methodConfig"]
    named = [each["method"] for each in config["name"] if each["service"] == f"{file.package}.{service.name}"]
    assert sorted(named) == sorted(idempotent) and len(named) == len(config["name"])


def test_deadlines_are_of_existing_calls(contracts):  # noqa: F811
    service = next(file for file in contracts if file.name == "fsdpd/v1/coordinator.proto").service[0]
    assert set(CALLS["deadline_seconds"]) - {"default"} <= {method.name for method in service.method}


# Calls without a method, by client, with the reason.
WITHOUT_A_METHOD = {}
# Pattern of a call in the sources of each client.
NAMED = {"python": (".py", r"\b(?!Invalid)([A-Z]\w+)Request\(|\bstub\.(\w+)\("),
         "go": (".go", r"\bapi\.CoordinatorClient\.(\w+)|\bplace\.stub\.(\w+)\(")}


@pytest.mark.parametrize("client", NAMED)
def test_a_client_covers_all_calls(contracts, client):  # noqa: F811
    suffix, pattern = NAMED[client]
    sources = [path for path in repository.with_suffix(suffix) if path.is_relative_to(f"clients/{client}")
               and "examples" not in path.parts and not path.stem.endswith("_test")]
    made = {name for path in sources for found in re.findall(pattern, repository.text(path)) for name in found if name}
    service = next(file for file in contracts if file.name == "fsdpd/v1/coordinator.proto").service[0]
    excused = {call for of, call in WITHOUT_A_METHOD if of == client}
    assert made | excused == {method.name for method in service.method}
    assert not made & excused, "these calls have a method; remove them from the list"
