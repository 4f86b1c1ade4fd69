"""Command lines: Flower's own parsers accept them, and what must be on or off is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_parser
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink_parser
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode_parser

from leanfed.deployment.operations import commands, keys
from leanfed.deployment.operations.folder import Bundle, FleetFolder
from leanfed.errors import InputError


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    return keys.make_fleet(tmp_path_factory.mktemp("at") / "fleet", nodes=["edge-0"], port=7001, control_port=7002)


@pytest.fixture
def bundle(fleet: FleetFolder) -> Bundle:
    return Bundle.open(fleet.bundle("edge-0"))


def test_superlink_is_on_loopback_with_tls_keys_isolation_and_a_secret(fleet: FleetFolder) -> None:
    python, safe, _, module, secret, audit, *arguments = commands.superlink(fleet)
    assert (python, safe, module) == (sys.executable, "-P", "leanfed.deployment.operations.superlink")
    assert (Path(secret), Path(audit)) == (fleet.server / "control.secret", fleet.audit.path)
    args = superlink_parser().parse_args(arguments)
    assert (args.host, args.port, args.isolation) == ("127.0.0.1", 7002, "process")
    assert args.enable_supernode_auth
    assert not args.insecure
    assert not args.runtime_dependency_install
    assert Path(args.superexec_auth_secret_file) == fleet.server / "superexec.secret"
    assert [Path(args.ssl_ca_certfile).name, Path(args.ssl_certfile).name, Path(args.ssl_keyfile).name] == [
        *("ca.crt", "server.crt", "server.key")
    ]
    assert Path(args.database) == fleet.server / "state.db"


def test_an_insecure_superlink_still_isolates_and_stays_on_loopback(fleet: FleetFolder) -> None:
    args = superlink_parser().parse_args(commands.superlink(fleet, insecure=True)[6:])
    assert args.insecure
    assert args.host == "127.0.0.1"
    assert args.isolation == "process"
    assert args.superexec_auth_secret_file
    assert args.ssl_certfile is None


def test_a_node_checks_the_server_and_proves_itself(bundle: Bundle) -> None:
    config = {"client-id": 3, "store": "/var/lib/lean fed", "data": "own"}
    command = commands.supernode(bundle, server="10.0.0.5:9092", port=7003, config=config)
    assert command[3:5] == ["leanfed.deployment.operations.supernode", str(bundle.path)]
    args = supernode_parser().parse_args(command[5:])
    assert Path(args.root_certificates) == bundle.path / "ca.crt"
    assert Path(args.auth_supernode_private_key) == bundle.path / "node.key"
    assert (args.superlink, args.host, args.port) == ("10.0.0.5:9092", "127.0.0.1", 7003)
    assert (args.isolation, args.max_retries, args.insecure) == (
        "process",
        None,
        False,
    )  # it outlives any outage of its server
    assert not args.runtime_dependency_install
    assert parse_config_args([args.node_config]) == config


def test_a_superexec_knows_the_secret_and_dies_with_us(fleet: FleetFolder, bundle: Bundle) -> None:
    server = superexec_parser().parse_args(commands.server_superexec(fleet)[1:])
    node = superexec_parser().parse_args(commands.node_superexec(bundle, port=7003)[1:])
    assert Path(server.root_certificates) == fleet.ca / "ca.crt"
    assert not server.insecure
    assert (server.runtime_api_address, node.runtime_api_address) == ("127.0.0.1:7002", "127.0.0.1:7003")
    for args, folder in ((server, fleet.server), (node, bundle.path)):
        assert Path(args.superexec_auth_secret_file) == folder / "superexec.secret"
        assert args.parent_pid == os.getpid()
        assert not args.runtime_dependency_install


def test_nothing_is_sent_out_and_proxies_do_not_see_loopback(tmp_path: Path) -> None:
    env = commands.environment(tmp_path, {"PATH": "/bin", "NO_PROXY": "intranet", "FLWR_TELEMETRY_ENABLED": "1"})
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/bin"]
    assert env["NO_PROXY"] == env["no_proxy"] == "intranet,127.0.0.1,::1,localhost"


def test_an_open_key_stops_the_launch(bundle: Bundle) -> None:
    key = bundle.path / "node.key"
    key.chmod(0o644)
    try:
        with pytest.raises(InputError, match="chmod 600"):
            commands.supernode(bundle, server="a:1", port=1, config={})
    finally:
        key.chmod(0o600)


@pytest.mark.parametrize("value", ["it's", "two\nlines"])
def test_a_node_config_that_flower_would_misread_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="store"):
        commands.node_config({"store": value})


def test_insecure_is_for_loopback_only() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        commands.check_loopback(host, "--host")
    for host in ("0.0.0.0", "::", "10.0.0.5", "127.0.0.1.example.org"):
        with pytest.raises(InputError, match="loopback"):
            commands.check_loopback(host, "--host")


def test_addresses_are_taken_apart() -> None:
    assert commands.split_address("10.0.0.5:9092") == ("10.0.0.5", 9092)
    assert commands.split_address("[::1]:9092") == ("::1", 9092)
    for wrong in ("10.0.0.5", ":9092", "host:0", "host:70000", "host:x"):
        with pytest.raises(InputError, match="host:port"):
            commands.split_address(wrong)
