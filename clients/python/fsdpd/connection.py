"""Addresses, TLS and token of a connection, from arguments or from the environment variables of fsdpctl.

Limits, deadlines and retried methods come from clients/calls.json, which all clients share.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import socket
import ssl
import stat
from collections.abc import Mapping
from importlib import resources
from typing import Any

import grpc

from fsdpd.errors import Error, Unavailable

CALLS: dict[str, Any] = json.loads(resources.files("fsdpd").joinpath("calls.json").read_text())
DEFAULT_ADDRESS = "127.0.0.1:7777"
_MAX_PORT = 65535
_PROBE_S = 2.0


def deadline_s(method: str) -> float:
    seconds: dict[str, float] = CALLS["deadline_seconds"]
    return float(seconds.get(method, seconds["default"]))


def _word(text: str, origin: str) -> str:
    word = text.strip()
    if not word or not all("!" <= char <= "~" for char in word):
        raise ValueError(f"{origin}: is not one word without spaces and line ends")
    return word


class _FileToken(grpc.AuthMetadataPlugin):
    """Bearer token from a file that is read for each call, so that a rotated token needs no restart."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def read(self) -> str:
        if self.path.stat().st_mode & stat.S_IROTH:
            raise PermissionError(f"{self.path}: every user of this machine can read the token; run chmod o-r")
        return _word(self.path.read_text(), str(self.path))

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            callback((("authorization", f"Bearer {self.read()}"),), None)
        except (OSError, ValueError) as error:
            callback((), error)


class Connection:
    """Factory of channels. The default of an argument is an environment variable: FSDPD_SERVER for `address`,
    FSDPD_COORDINATOR_CA for `ca_file`, FSDPD_TOKEN_FILE for `token_file`, and FSDPD_TOKEN for `token` if no file is
    set. Without a CA file the connection is plaintext, and no token is sent."""

    def __init__(self, address: str | None = None, *, ca_file: str | os.PathLike[str] | None = None,
                 token_file: str | os.PathLike[str] | None = None, token: str | None = None,
                 environ: Mapping[str, str] | None = None) -> None:
        # Not a default argument: help() would print the whole environment, including its secrets.
        environ = os.environ if environ is None else environ
        self.address = address or environ.get("FSDPD_SERVER") or DEFAULT_ADDRESS
        self.addresses = [each.strip() for each in self.address.split(",")]
        for each in self.addresses:
            host, colon, port = each.rpartition(":")
            if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= _MAX_PORT:
                raise ValueError(f"{each!r} is not HOST:PORT with a port from 1 to {_MAX_PORT}")
        if ca_file is None:
            ca_file = environ.get("FSDPD_COORDINATOR_CA")
        # An explicit `token` has priority over a file from the environment.
        if token_file is None and token is None:
            token_file = environ.get("FSDPD_TOKEN_FILE")
        if token_file is None and token is None:
            token = environ.get("FSDPD_TOKEN")
        self.credentials = self._credentials(ca_file, token_file, token)

    @staticmethod
    def _credentials(ca_file: str | os.PathLike[str] | None, token_file: str | os.PathLike[str] | None,
                     token: str | None) -> grpc.ChannelCredentials | None:
        if not ca_file:
            return None
        trusted = pathlib.Path(ca_file).read_bytes()
        if b"-----BEGIN CERTIFICATE-----" not in trusted:
            raise ValueError(f"{os.fspath(ca_file)}: contains no PEM certificate")
        channel = grpc.ssl_channel_credentials(trusted)
        if token_file:
            plugin = _FileToken(pathlib.Path(token_file))
            plugin.read()  # Report a bad file now instead of at the first call.
            return grpc.composite_channel_credentials(channel, grpc.metadata_call_credentials(plugin))
        if token:
            return grpc.composite_channel_credentials(
                channel, grpc.access_token_call_credentials(_word(token, "the token")))
        return channel

    @property
    def options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.enable_retries", 0),  # places.py retries, possibly with another coordinator.
            ("grpc.max_receive_message_length", CALLS["max_message_bytes"]),
            ("grpc.max_metadata_size", CALLS["max_metadata_bytes"]),
            ("grpc.keepalive_time_ms", CALLS["keepalive_seconds"] * 1000),
            ("grpc.keepalive_timeout_ms", CALLS["keepalive_timeout_seconds"] * 1000),
            # Also the limit of one connect. A machine that is off never answers, and the call must have time for
            # others.
            ("grpc.min_reconnect_backoff_ms", CALLS["deadline_seconds"]["default"] * 1000 // 3),
            ("grpc.initial_reconnect_backoff_ms", CALLS["reconnect_first_ms"]),
            ("grpc.max_reconnect_backoff_ms", CALLS["reconnect_longest_ms"]),
            ("grpc.enable_http_proxy", 0),  # Components of one cluster connect directly.
        ]

    def diagnosed(self, error: Error, address: str) -> Error:
        """Returns `error`, or a better one if a plaintext client called a coordinator with TLS, which gRPC reports only
        as unavailable. Probes the address once, for at most two seconds."""
        unanswered = error.reason in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        if not unanswered or self.credentials is not None or not self._accepts_tls(address):
            return error
        return Unavailable(f"the coordinator at {address} requires TLS; pass ca_file or set FSDPD_COORDINATOR_CA",
                           code=grpc.StatusCode.UNAVAILABLE, reason="TLS_REQUIRED")

    @staticmethod
    def _accepts_tls(address: str) -> bool:
        host, _, port = address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Unverified: the probe sends no data after the handshake.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as plain:
                with context.wrap_socket(plain):
                    return True
        except OSError:
            return False

    def channel(self, address: str) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(address, self.options)
        return grpc.secure_channel(address, self.credentials, self.options)

    def async_channel(self, address: str) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(address, self.options)
        return grpc.aio.secure_channel(address, self.credentials, self.options)
