"""Keys: what is issued verifies, what is secret is closed, and a node that was shut out stays out."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from leanfed.deployment.operations import keys
from leanfed.deployment.operations.folder import Bundle, FleetFolder, check_private, write_private
from leanfed.deployment.operations.roster import Roster
from leanfed.errors import InputError


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    return keys.make_fleet(tmp_path / "fleet", hosts=["fleet.example", "10.0.0.5"], nodes=["edge-0", "edge-1"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_closed_and_folders_too(fleet: FleetFolder) -> None:
    secret = {".key", ".secret", ".jsonl"}
    for path in fleet.path.rglob("*"):
        if path.is_dir():
            assert mode(path) == 0o700, path
        elif path.suffix in secret:
            assert mode(path) == 0o600, path
    assert mode(fleet.path) == 0o700


def test_a_secret_is_never_wider_than_asked_even_under_an_open_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "secret", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "secret") == 0o600


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    path.write_text("x")
    path.chmod(0o640)
    with pytest.raises(InputError, match="mode 0640.*chmod 600"):
        check_private(path)
    path.chmod(0o400)
    assert check_private(path) == path


def test_the_certificate_names_the_hosts_and_loopback_and_verifies(fleet: FleetFolder) -> None:
    authority = x509.load_pem_x509_certificate((fleet.ca / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((fleet.server / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fleet.example", "localhost"]
    assert {str(a) for a in names.get_values_for_type(x509.IPAddress)} == {"10.0.0.5", "127.0.0.1", "::1"}
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = serialization.load_pem_private_key((fleet.server / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_the_chain_under_its_strict_rules(fleet: FleetFolder) -> None:
    certificate, authority = fleet.server / "server.crt", fleet.ca / "ca.crt"
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", authority, certificate],
        check=True,
        capture_output=True,
    )


def test_node_keys_are_p384_in_the_form_that_flower_reads(fleet: FleetFolder) -> None:
    folder = fleet.bundle("edge-0")
    key = serialization.load_ssh_private_key((folder / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    member = Roster.load(fleet.registry)["edge-0"]
    assert keys.fingerprint((folder / "node.pub").read_bytes()) == member.fingerprint
    assert keys.fingerprint(keys.pem_of(member.public_key)) == member.fingerprint


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_the_fingerprint_is_the_one_of_ssh_keygen(fleet: FleetFolder) -> None:
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", fleet.bundle("edge-1") / "node.key"], check=True, capture_output=True, text=True
    )
    assert Roster.load(fleet.registry)["edge-1"].fingerprint in shown.stdout


def test_bundles_differ_in_every_secret_and_name_the_server(fleet: FleetFolder) -> None:
    first, second = (Bundle.open(fleet.bundle(name)) for name in ("edge-0", "edge-1"))
    assert (first.client_id, second.client_id) == (0, 1)
    assert first.server == "fleet.example:9092"
    secrets = [(b.path / "superexec.secret").read_bytes() for b in (first, second)]
    secrets.append((fleet.server / "superexec.secret").read_bytes())
    assert len(set(secrets)) == 3
    assert not (first.path / "ca.key").exists()


def test_a_device_may_keep_its_private_key_to_itself(fleet: FleetFolder, tmp_path: Path) -> None:
    public = tmp_path / "device.pub"
    public.write_text(keys._new_node_key("device")[0])
    bundle = keys.add_node(fleet, "device", public_key=public)
    assert bundle.client_id == 2
    assert not (bundle.path / "node.key").exists()
    with pytest.raises(InputError, match="already that of 'device'"):
        keys.add_node(fleet, "twin", public_key=public)
    public.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS")
    with pytest.raises(InputError, match="not an elliptic-curve key.*ssh-keygen"):
        keys.add_node(fleet, "other", public_key=public)


def test_a_revoked_node_is_refused_and_its_name_and_number_are_never_given_again(fleet: FleetFolder) -> None:
    keys.revoke_node(fleet, "edge-1")
    roster = Roster.load(fleet.registry)
    assert roster["edge-1"].refusal() == "revoked key"
    assert roster["edge-0"].refusal() is None
    for act in (lambda: keys.add_node(fleet, "edge-1"), lambda: keys.revoke_node(fleet, "edge-1")):
        with pytest.raises(InputError):
            act()
    with pytest.raises(InputError, match="revoked"):
        keys.renew(fleet, "edge-1", 10)
    assert keys.add_node(fleet, "edge-2").client_id == 2
    assert [row["event"] for row in fleet.audit.read()] == [
        *("app signed", "node added", "node added", "fleet made", "node revoked", "node added")
    ]


def test_a_nodes_key_ends_and_can_be_renewed(fleet: FleetFolder) -> None:
    member = Roster.load(fleet.registry)["edge-0"]
    end = datetime.fromisoformat(member.expires)
    assert member.refusal(end - timedelta(seconds=1)) is None
    assert member.refusal(end) == "expired key"
    keys.renew(fleet, "edge-0", 1000)
    assert Roster.load(fleet.registry)["edge-0"].refusal(end) is None


def test_a_renewed_certificate_has_a_new_key_and_the_same_authority(fleet: FleetFolder) -> None:
    before = (fleet.server / "server.key").read_bytes()
    keys.renew(fleet, "server", 30)
    assert (fleet.server / "server.key").read_bytes() != before
    left = keys.expiry(fleet.server / "server.crt") - datetime.now(UTC)
    assert timedelta(days=29) < left < timedelta(days=30)
    server = x509.load_pem_x509_certificate((fleet.server / "server.crt").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate((fleet.ca / "ca.crt").read_bytes()))


def test_an_ended_certificate_is_refused_with_the_way_out(fleet: FleetFolder) -> None:
    keys.issue_server(fleet, days=-1)
    with pytest.raises(InputError, match="--renew server"):
        keys.check_certificate(fleet.server / "server.crt")


@pytest.mark.parametrize("name", ["", "../up", "a/b", "server", "-x", "a" * 64, "späne"])
def test_names_that_are_not_safe_in_a_path_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot name a node"):
        keys.make_fleet(tmp_path / "fleet", nodes=[name])
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize("host", ["fleet.example:9092", "https://fleet.example", "two words", ""])
def test_hosts_that_are_not_hosts_are_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither an address nor a host name"):
        keys.make_fleet(tmp_path / "fleet", hosts=[host])


def test_a_fleet_is_not_made_over_something_else(fleet: FleetFolder) -> None:
    with pytest.raises(InputError, match="not an empty folder"):
        keys.make_fleet(fleet.path)
    with pytest.raises(InputError, match="leanfed deploy keys"):
        FleetFolder.open(fleet.path / "runs")
