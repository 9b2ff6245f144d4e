"""How clients call: clients/calls.json is the one place, and fsdpctl, which is built without it, has the same."""

import json
import re

from harness.programs import ROOT
from tidy.test_proto import METHOD, SERVICE, comments, contracts  # noqa: F401: a fixture

CALLS = json.loads((ROOT / "clients/calls.json").read_text())


def constant(path, name):
    """Of C++: 64 << 10, 10'000, absl::Seconds(10)."""
    value, = re.findall(rf"\b{name} = (?:absl::\w+\()?([\d' <]+)\)?;", (ROOT / path).read_text())
    number, _, shift = value.replace("'", "").partition("<<")
    return int(number) << int(shift or 0)


def test_fsdpctl_has_the_same_numbers():
    client = "client/coordinator_client.cc"
    assert CALLS["max_message_bytes"] == constant("base/limits.h", "kMaxRpcBytes")
    assert CALLS["max_metadata_bytes"] == constant(client, "kMaxMetadataBytes")
    assert CALLS["keepalive_seconds"] * 1000 == constant(client, "kKeepaliveMs")
    assert CALLS["keepalive_timeout_seconds"] * 1000 == constant(client, "kKeepaliveMs")
    assert CALLS["deadline_seconds"]["default"] == constant("client/coordinator_client.h", "call_timeout")
    assert CALLS["follow_reconnect_for_seconds"] == constant("client/job_follow.h", "reconnect_for")
    assert CALLS["follow_pause_ms"] == constant("client/job_follow.h", "pause")


def test_the_coordinator_takes_pings_that_often():
    assert CALLS["keepalive_seconds"] * 1000 >= constant("coordinator/front.cc", "kMinPingIntervalMs")


def test_what_is_idempotent_is_what_is_repeated(contracts):  # noqa: F811
    file = next(file for file in contracts if file.name == "fsdpd/v1/coordinator.proto")
    said, service = comments(file), file.service[0]
    idempotent = {method.name for number, method in enumerate(service.method) if not method.server_streaming
                  and re.search(r"(?<!Not )\bIdempotent\b", said[(SERVICE, 0, METHOD, number)])}
    config, = CALLS["service_config"]["methodConfig"]
    named = [each["method"] for each in config["name"] if each["service"] == f"{file.package}.{service.name}"]
    assert sorted(named) == sorted(idempotent) and len(named) == len(config["name"])


def test_deadlines_are_of_calls_that_there_are(contracts):  # noqa: F811
    service = next(file for file in contracts if file.name == "fsdpd/v1/coordinator.proto").service[0]
    assert set(CALLS["deadline_seconds"]) - {"default"} <= {method.name for method in service.method}
