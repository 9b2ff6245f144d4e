"""Certificates and tokens of an authenticated cluster, created as documented with deploy/certificates and fsdpctl."""

import os
import pathlib
import subprocess

import grpc

from harness.programs import ROOT, program


def certificates(directory, *arguments, days=90):
    subprocess.run([ROOT / "deploy/certificates", directory, *arguments], check=True,
                   env={**os.environ, "FSDPD_CERTIFICATE_DAYS": str(days)})


def new_token(directory, name, role, *flags):
    """Returns (its line for the coordinator's token file, the file with the token)."""
    path = pathlib.Path(directory) / f"{name}-{len(list(pathlib.Path(directory).glob('*.token')))}.token"
    done = subprocess.run([program("client/fsdpctl"), "token", "new", name, "--role", role, "--out", path, *flags],
                          check=True, capture_output=True, text=True)
    return done.stdout, path


class Security:
    """An operator's files: `pki` made by deploy/certificates, `tokens` for the coordinator."""

    PEOPLE = {"vera": "viewer", "sam": "submitter", "sue": "submitter", "olga": "operator", "ada": "admin"}

    def __init__(self, directory, names=("localhost", "127.0.0.1")):
        """`names`: names in the coordinator's certificate."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True)
        self.pki, self.tokens, self.audit = directory / "pki", directory / "tokens", directory / "audit.jsonl"
        self.more_flags = []  # Further flags of the coordinator.
        self._files, lines = {}, []
        certificates(self.pki, "coordinator", *names)
        for name, role in self.PEOPLE.items():
            line, self._files[name] = new_token(directory, name, role)
            lines.append(line)
        self.tokens.write_text("".join(lines))

    def coordinator_flags(self):
        return ["--tls-cert", self.pki / "coordinator.crt", "--tls-key", self.pki / "coordinator.key",
                "--tls-client-ca", self.pki / "ca.crt", "--tokens", self.tokens, "--audit-log", self.audit,
                *self.more_flags]

    def pair(self, node):
        """Paths of a node's certificate and key, whether they exist or not."""
        stem = f"nodes/{node}" if len(node) < 252 else f"nodes/{node}/node"
        return self.pki / f"{stem}.crt", self.pki / f"{stem}.key"

    def agent_flags(self, node):
        certificate, key = self.pair(node)
        if not certificate.exists():
            certificates(self.pki, "node", node)
        return {"coordinator_ca": self.pki / "ca.crt", "tls_cert": certificate, "tls_key": key}

    def admit(self, name, role, *flags):
        """Adds a user, with a token made by `fsdpctl token new` with these flags."""
        line, self._files[name] = new_token(self.tokens.parent, name, role, *flags)
        self.tokens.write_text(self.tokens.read_text() + line)

    def token_file(self, name):
        return self._files[name]

    def token(self, name):
        return self._files[name].read_text().strip()

    def environment(self, name):
        """Environment for fsdpctl to authenticate as this user."""
        return {"FSDPD_COORDINATOR_CA": str(self.pki / "ca.crt"), "FSDPD_TOKEN_FILE": str(self.token_file(name))}

    def ctl_flags(self, name):
        """Flags for fsdpctl to authenticate as this user."""
        return ["--coordinator-ca", self.pki / "ca.crt", "--token-file", self.token_file(name)]

    def channel(self, address, token=None, node=None, options=()):
        """New channel to the coordinator, with a token, a node's certificate, or neither. Trusts the CA that is on
        disk now."""
        certificate, key = [each.read_bytes() for each in self.pair(node)] if node else [None, None]
        credentials = grpc.ssl_channel_credentials((self.pki / "ca.crt").read_bytes(), key, certificate)
        if token:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        return grpc.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1), *options])
