"""One signed app: what a node takes, what it refuses, and that an old app cannot be brought back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.supernode import start_client_internal as worker

from leanfed.deployment.operations import keys
from leanfed.deployment.operations.flower_app import archive
from leanfed.deployment.operations.folder import Bundle, FleetFolder
from leanfed.deployment.operations.release import Release, renew_release
from leanfed.deployment.operations.run_keeper import _signed_app
from leanfed.deployment.operations.supernode import UNSIGNED, AppGuard
from leanfed.errors import InputError


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    return keys.make_fleet(tmp_path / "fleet", nodes=["edge-0"])


@pytest.fixture
def bundle(fleet: FleetFolder) -> Bundle:
    return Bundle.open(fleet.bundle("edge-0"))


def test_a_new_fleet_has_signed_the_app_of_this_version_and_every_bundle_knows_it(
    fleet: FleetFolder, bundle: Bundle
) -> None:
    release = Release.load(fleet.server)
    assert release == Release.load(bundle.path)
    assert release.app == hashlib.sha256(archive()).hexdigest()
    assert release.fault(bundle.path / "ca.crt") is None


def test_a_node_runs_the_signed_app_and_writes_down_what_it_refused(bundle: Bundle) -> None:
    guard = AppGuard(bundle, None)
    assert guard.admits(archive())
    assert not guard.admits(b"an app of somebody else's")
    accepted, refused = bundle.audit.read()
    assert accepted["event"] == "app accepted"
    assert (refused["event"], refused["why"]) == ("refused", UNSIGNED)
    assert refused["app"] == hashlib.sha256(b"an app of somebody else's").hexdigest()


def test_a_changed_digest_is_not_believed(bundle: Bundle) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    replace(Release.load(bundle.path), app=other).save(bundle.path)
    assert not AppGuard(bundle, None).admits(b"other")
    assert not AppGuard(bundle, None).admits(archive())


def test_a_roll_out_reaches_a_node_once_and_an_old_app_cannot_be_brought_back(
    fleet: FleetFolder, bundle: Bundle
) -> None:
    old = Release.load(bundle.path)
    new = keys.roll_out(fleet)
    old.save(bundle.path)  # a device far away, which the owner does not visit
    assert renew_release(bundle.path, new.__dict__) == new
    assert Release.load(bundle.path) == new
    assert renew_release(bundle.path, new.__dict__) is None
    assert renew_release(bundle.path, old.__dict__) is None
    assert Release.load(bundle.path) == new


def test_another_fleets_signature_is_not_taken(tmp_path: Path, bundle: Bundle) -> None:
    before = Release.load(bundle.path)
    stranger = Release.load(keys.make_fleet(tmp_path / "other").server)
    assert stranger.signed > before.signed
    assert renew_release(bundle.path, stranger.__dict__) is None
    assert Release.load(bundle.path) == before


@pytest.mark.parametrize("offered", [{}, None, {"app": "x"}, "text"])
def test_an_offer_that_is_no_release_is_an_error_in_words(bundle: Bundle, offered: Any) -> None:
    with pytest.raises(InputError, match="A signed app needs"):
        renew_release(bundle.path, offered)


def test_a_run_of_another_version_than_the_signed_one_names_the_way(fleet: FleetFolder) -> None:
    assert _signed_app(fleet) == archive()
    replace(Release.load(fleet.server), app="0" * 64, version="0.1.0").save(fleet.server)
    with pytest.raises(InputError, match=r"that of version 0.1.0.*--roll-out"):
        _signed_app(fleet)


def test_a_fleet_of_an_earlier_version_is_given_what_it_lacks(fleet: FleetFolder) -> None:
    for name in ("app.json", "app.fab", "control.secret"):
        (fleet.server / name).unlink()
    secret = (fleet.server / "superexec.secret").read_bytes()
    keys.prepare_old(fleet)
    assert Release.load(fleet.server).fault(fleet.ca / "ca.crt") is None
    assert (fleet.server / "control.secret").stat().st_mode & 0o777 == 0o600
    assert (fleet.server / "superexec.secret").read_bytes() == secret


def test_the_seams_of_flower_are_where_they_were() -> None:
    """Names that our SuperNode replaces; another version of flwr may have others."""
    from importlib import import_module

    assert callable(worker._init_connection)
    assert worker._verify_fab.__code__.co_varnames[:2] == ("fab", "trusted_entities")
    assert import_module("flwr.supernode.cli.flower_supernode").start_client_internal is worker.start_client_internal
    assert callable(import_module("flwr.superlink.extensions")._try_import_sgxt)
