"""Keys of a fleet: a certificate authority, the server's certificate, node keys and SuperExec secrets.

Everything is on NIST P-384. Nodes check the server by its certificate; the server knows a node by its public key.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from leanfed import __version__
from leanfed.deployment.operations.cards import sign_card
from leanfed.deployment.operations.flower_app import archive
from leanfed.deployment.operations.folder import (
    CONTROL_PORT,
    FLEET_PORT,
    Bundle,
    FleetFolder,
    check_private,
    checked_name,
    private_folder,
    write_private,
)
from leanfed.deployment.operations.release import Release
from leanfed.deployment.operations.roster import Roster
from leanfed.errors import InputError
from leanfed.files import explained

ALWAYS = ("localhost", "127.0.0.1", "::1")  # the server calls itself on loopback
CA_DAYS = 3650
SECRETS = ("superexec.secret", "control.secret")  # of Flower's runtime API, and of its control API
APP = "app.fab"
SERVER_DAYS = NODE_DAYS = 397  # a year and a month: time to renew


def make_fleet(
    path: Path,
    *,
    hosts: Sequence[str] = (),
    nodes: Sequence[str] = (),
    port: int = FLEET_PORT,
    control_port: int = CONTROL_PORT,
    days: int = SERVER_DAYS,
) -> FleetFolder:
    """Make a new deployment folder with its authority, its server's certificate and one bundle per node."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not an empty folder. Choose a new folder for a new fleet.")
    for name in nodes:
        checked_name(name)
    if len(set(nodes)) != len(nodes):
        raise InputError(f"A node's name comes twice in {', '.join(nodes)}. Names must differ.")
    alternatives = _alternatives(hosts)
    private_folder(path)
    fleet = FleetFolder(path.resolve(), path.resolve().name, tuple(hosts) or ("127.0.0.1",), port, control_port)
    _make_authority(fleet, CA_DAYS)
    private_folder(fleet.server)
    private_folder(path / "nodes")
    private_folder(path / "runs")
    for name in SECRETS:
        write_private(fleet.server / name, _secret())
    issue_server(fleet, days=days, alternatives=alternatives)
    Roster().save(fleet.registry)
    fleet.save()
    roll_out(fleet)
    for name in nodes:
        add_node(fleet, name, days=days)
    fleet.audit.write("fleet made", fleet=fleet.name, hosts=list(fleet.hosts), nodes=list(nodes))
    return fleet


def issue_server(
    fleet: FleetFolder, *, days: int = SERVER_DAYS, alternatives: x509.SubjectAlternativeName | None = None
) -> None:
    """Issue the server's certificate anew, with a new key, for the hosts of the fleet and loopback."""
    authority, signer = _read_authority(fleet)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = (
        _builder(f"{fleet.name} server", authority.subject, key.public_key(), days)
        .add_extension(alternatives or _alternatives(fleet.hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    certificate = builder.sign(signer, hashes.SHA384())
    write_private(fleet.server / "server.key", _pem(key))
    write_private(fleet.server / "server.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def add_node(
    fleet: FleetFolder,
    name: str,
    *,
    public_key: Path | None = None,
    days: int = NODE_DAYS,
    samples: int | None = None,
) -> Bundle:
    """Register a node and make its bundle; with `public_key`, its private key stays where it was made.

    `samples` is the most training samples that it may say to have, and so the most weight that it can get.
    """
    line, private = (_read_public(public_key), None) if public_key is not None else _new_node_key(name)
    roster = Roster.load(fleet.registry).add(name, line, fingerprint(line.encode()), days, samples)
    if (fleet.ca / "ca.key").is_file():  # kept elsewhere, it signs with the next roll-out
        roster = _carded(fleet, roster)
    folder = private_folder(fleet.bundle(name))
    if private is not None:
        write_private(folder / "node.key", private)
    write_private(folder / "node.pub", line.encode() + b"\n", 0o644)
    write_private(folder / "ca.crt", (fleet.ca / "ca.crt").read_bytes(), 0o644)
    write_private(folder / "superexec.secret", _secret())
    if (release := Release.load(fleet.server)) is not None:
        release.save(folder)
    bundle = Bundle(folder, name, roster[name].client_id, address(fleet.hosts[0], fleet.port))
    bundle.save()
    roster.save(fleet.registry)  # last: a node is known only when its bundle is whole
    fleet.audit.write("node added", node=name, client_id=bundle.client_id, key=roster[name].fingerprint)
    return bundle


def roll_out(fleet: FleetFolder) -> Release:
    """Sign the app of this installation, which nodes run from now on and no other, and cards that nobody signed yet."""
    app = archive()
    _, signer = _read_authority(fleet)
    release = Release.sign(app, __version__, signer)
    write_private(fleet.server / APP, app)
    release.save(fleet.server)
    for folder in (fleet.path / "nodes").iterdir():
        release.save(folder)
    _carded(fleet, Roster.load(fleet.registry)).save(fleet.registry)
    fleet.audit.write("app signed", app=release.app, version=release.version)
    return release


def _carded(fleet: FleetFolder, roster: Roster) -> Roster:
    """The roster with a card for everybody."""
    _, signer = _read_authority(fleet)
    for node in roster.nodes:
        if node.card is None:
            roster = roster.sign(node.name, sign_card(node.name, node.client_id, node.public_key, signer))
    return roster


def prepare_old(fleet: FleetFolder) -> None:
    """Give a fleet that an earlier version made what this version needs."""
    for name in SECRETS:
        if not (fleet.server / name).exists():
            write_private(fleet.server / name, _secret())
    if Release.load(fleet.server) is None:
        roll_out(fleet)


def revoke_node(fleet: FleetFolder, name: str) -> None:
    """Shut a node out, at once where the server runs."""
    roster = Roster.load(fleet.registry).revoke(name)
    roster.save(fleet.registry)
    fleet.audit.write("node revoked", node=name, client_id=roster[name].client_id, key=roster[name].fingerprint)


def renew(fleet: FleetFolder, name: str, days: int) -> None:
    """Issue the server's certificate anew (`server`), or let a node's key stand for `days` more."""
    if name == "server":
        issue_server(fleet, days=days)
        fleet.audit.write("certificate renewed", days=days)
    else:
        roster = Roster.load(fleet.registry).renew(name, days)
        roster.save(fleet.registry)
        fleet.audit.write("node renewed", node=name, expires=roster[name].expires)


def change_hosts(fleet: FleetFolder, hosts: Sequence[str], days: int = SERVER_DAYS) -> FleetFolder:
    """Give the server other names; its certificate is issued anew and the bundles made from now on name the first."""
    changed = replace(fleet, hosts=tuple(hosts))
    issue_server(changed, days=days, alternatives=_alternatives(hosts))
    changed.save()
    fleet.audit.write("certificate renewed", days=days, hosts=list(hosts))
    return changed


def expiry(certificate: Path) -> datetime:
    """When a certificate ends."""
    with explained(certificate, "read"):
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def check_certificate(path: Path) -> Path:
    """The path of a certificate that is valid now."""
    end = expiry(path)
    if end <= datetime.now(UTC):
        raise InputError(
            f"{path} ended on {end:%Y-%m-%d}. Issue it anew with: leanfed deploy keys FLEET --renew server"
        )
    return path


def fingerprint(public_key: bytes) -> str:
    """SHA256:... of a public key in OpenSSH's or PEM form; ValueError where it is neither, or not elliptic."""
    load = serialization.load_pem_public_key if public_key.startswith(b"-----") else serialization.load_ssh_public_key
    key = load(public_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic-curve key")
    digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def pem_of(public_key: str) -> bytes:
    """A public key of the roster in the form that Flower stores."""
    key = serialization.load_ssh_public_key(public_key.encode())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _make_authority(fleet: FleetFolder, days: int) -> None:
    private_folder(fleet.ca)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{fleet.name} fleet authority"[:64])])
    builder = (
        _builder(f"{fleet.name} fleet authority", subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    write_private(fleet.ca / "ca.key", _pem(key))
    certificate = builder.sign(key, hashes.SHA384())
    write_private(fleet.ca / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _read_authority(fleet: FleetFolder) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(check_private(fleet.ca / "ca.key").read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{fleet.ca / 'ca.key'} is not an elliptic-curve key. Restore the one that made this fleet.")
    return x509.load_pem_x509_certificate((fleet.ca / "ca.crt").read_bytes()), key


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    start = min(now, now + timedelta(days=days)) - timedelta(minutes=5)  # clocks differ a little
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: wanted.get(name, False) for name in names})


def _alternatives(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    """The names and addresses a certificate stands for."""
    found: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, *ALWAYS)):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host or not host.isascii() or any(c in host for c in " /:@") or host.startswith("-"):
                raise InputError(
                    f"{host!r} is neither an address nor a host name. Give --host as nodes call it, without a port."
                ) from None
            found.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(found)


def _new_node_key(name: str) -> tuple[str, bytes]:
    """A new key pair: the public line and the private file, both in OpenSSH's form, which Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return f"{public.decode()} {name}", private


def _read_public(path: Path) -> str:
    with explained(path, "read"):
        line = path.read_text(encoding="utf-8").strip()
    try:
        fingerprint(line.encode())
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is no public key that can be used ({error}). Make one with: ssh-keygen -t ecdsa -b 384 -f node.key"
        ) from error
    return line


def _secret() -> bytes:
    return secrets.token_hex(32).encode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
