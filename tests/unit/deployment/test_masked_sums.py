"""Masked sums without a network: the total is the plain one to the last bit, and nodes refuse to show more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.deployment.learning.messages import WireRecord
from leanfed.deployment.masking.graph import connected, graph_of, threshold, why_too_few, why_unfair
from leanfed.deployment.masking.identity import Card, Identity
from leanfed.deployment.masking.node import MaskRefusedError
from leanfed.deployment.masking.records import (
    WANT_KEYS,
    WANT_SHARES,
    WANT_UNMASKING,
    Unmasking,
    WantShares,
    WantUnmasking,
)
from leanfed.deployment.masking.secrets import Secrets, public_bytes, seal, unseal
from leanfed.deployment.masking.sums import GivenUpError, MaskedRound
from leanfed.deployment.operations import keys
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.roster import Roster
from tests.unit.deployment.parties import BASE, GRID, RUN, Party, order_of, plain

UPDATES = {client: np.random.default_rng(client).normal(size=4).astype(np.float32) for client in range(9)}
LISTS = ("neighbours", "ciphers", "masks", "seeds", "signatures", "names", "public_keys", "cards")
EQUAL = dict.fromkeys(range(5), 0.2)


# Who masks with whom


@given(st.sets(st.integers(0, 99), min_size=3, max_size=20), st.none() | st.integers(2, 9), st.integers(0, 3))
def test_neighbours_are_mutual_equally_many_and_link_everybody(
    clients: set[int], wanted: int | None, number: int
) -> None:
    graph = graph_of(clients, wanted, 7, number)
    assert set(graph) == clients
    assert all(one in graph[other] and one != other for one in clients for other in graph[one])
    most = len(clients) - 1
    assert {len(near) for near in graph.values()} == {most if wanted is None else min(most, wanted + wanted % 2)}
    assert connected(clients, graph)


@given(st.integers(2, 200))
def test_holders_who_give_one_share_each_cannot_give_both_secrets(neighbours: int) -> None:
    assert 2 * threshold(neighbours) > neighbours + 1


def test_parts_that_no_mask_links_are_not_unmasked() -> None:
    """A ring 0-1-2-3-4-5: without 0 and 3 the pairs (1, 2) and (4, 5) are left, whose sums would show."""
    ring = {one: ((one - 1) % 6, (one + 1) % 6) for one in range(6)}
    assert why_too_few({1, 2, 4, 5}, {1, 2, 4, 5}, ring) == (
        "the uploads that came are not all linked by masks, so that parts of the sum would show"
    )


def test_a_sum_that_is_one_clients_update_is_told() -> None:
    assert why_unfair([1.0, 0.5, 0.5]) is None
    assert why_unfair([1.0, 0.1, 0.1]) == "one of 3 clients has 83% of the weight"
    assert why_unfair([0.0, 0.0]) == "one of 2 clients has 0% of the weight"


# The total


@pytest.mark.parametrize(("clients", "neighbours"), [(5, None), (9, 4)], ids=["all", "ring"])
@pytest.mark.parametrize("stage", ["nobody", WANT_KEYS, WANT_SHARES, "upload", WANT_UNMASKING])
def test_whoever_drops_out_the_total_is_the_plain_one_to_the_last_bit(
    tmp_path: Path, clients: int, neighbours: int | None, stage: str
) -> None:
    weights = {client: 1.0 + client % 3 for client in range(clients)}
    party = Party(tmp_path, clients, neighbours, silent={stage: {2}})
    sum_ = party.agreed(weights)
    left = [one for one in range(clients) if one != 2 or stage in ("nobody", WANT_UNMASKING)]
    assert list(sum_.weights) == (left if stage != "upload" else list(range(clients)))
    uploads = {one: party.upload(sum_, one, UPDATES[one]) for one in left}
    assert sum_.why_not(set(uploads)) is None
    assert sum_.total(uploads).tolist() == plain(UPDATES, weights, left).tolist()
    assert party.refused == []


def test_the_mean_is_off_by_half_a_step_for_every_client_at_most(tmp_path: Path) -> None:
    weights = {0: 40.0, 1: 25.0, 2: 35.0}
    party = Party(tmp_path, 3)
    sum_ = party.agreed(weights)
    mean = sum_.mean({one: party.upload(sum_, one, UPDATES[one]) for one in weights})
    exact = sum(weights[one] * UPDATES[one].astype(float) for one in weights) / 100
    bound = 3 * GRID.step / 2 / sum(sum_.weights.values())
    assert 0 < np.abs(mean - exact).max() <= bound


def test_what_a_client_sends_is_not_its_update_and_never_the_same(tmp_path: Path) -> None:
    """Over 400 entries, masked numbers of 35 bits share half of their bits with the update's, as strangers do."""
    party, values = Party(tmp_path, 5), np.full(400, 1.25)
    one, other = party.agreed(EQUAL, 0, 400), party.agreed(EQUAL, 1, 400)
    with pytest.raises(MaskRefusedError, match="no secrets of this sum"):
        party.upload(one, 3, values)  # its secrets gave way to those of the next sum
    first = party.upload(other, 3, values)
    second = party.upload(party.agreed(EQUAL, 2, 400), 3, values)
    whole = GRID.rounded(values)[0].astype(np.uint64)
    for a, b in ((first, whole), (second, whole), (first, second)):
        same = 1 - np.unpackbits((a ^ b).astype("<u8").view(np.uint8)).sum() / (400 * other.bits)
        assert same == pytest.approx(0.5, abs=0.03)
        assert not np.any(a == b)


def test_clients_that_were_told_of_different_bases_have_masks_that_do_not_cancel(tmp_path: Path) -> None:
    party = Party(tmp_path, 3)
    sum_ = party.agreed(dict.fromkeys(range(3), 1.0))
    uploads = {one: party.upload(sum_, one, UPDATES[one], BASE if one else "d" * 32) for one in range(3)}
    assert np.all(np.abs(sum_.total(uploads) - plain(UPDATES, EQUAL, range(3))) > 1000)


# What a node refuses


def uploaded(party: Party, weights: dict[int, float] | None = None) -> tuple[MaskedRound, dict[int, Any]]:
    sum_ = party.agreed(weights or EQUAL)
    return sum_, {one: party.upload(sum_, one, UPDATES[one]) for one in sum_.weights}


@pytest.mark.parametrize(
    ("survivors", "dropped", "why"),
    [
        ([0, 1, 2, 3, 4], [4], "both kinds of shares are asked of client 4"),
        ([0, 1, 2], [3, 4], "3 holders of client 0's shares are left, and 4 are needed"),
        ([0, 1], [2, 3, 4], "2 uploads, and 3 are the least"),
        ([0, 1, 2, 3], [], "not together the clients of the sum"),
        ([0, 1, 2, 3, 4, 4], [], "not together the clients of the sum"),
        ([1, 2, 3, 4], [0], "client 0 has uploaded, and is named as dropped"),
    ],
    ids=["both", "threshold", "least", "missing", "twice", "itself"],
)
def test_an_unmasking_that_would_show_more_than_a_sum_is_refused(
    tmp_path: Path, survivors: list[int], dropped: list[int], why: str
) -> None:
    party = Party(tmp_path, 5)
    sum_, _ = uploaded(party)
    asked = WantUnmasking(run=RUN, token=sum_.token, round=0, client=0, survivors=survivors, dropped=dropped)
    with pytest.raises(MaskRefusedError, match=why):
        party.nodes[0].unmask(asked)
    honest = asked.model_copy(update={"survivors": [0, 1, 2, 3, 4], "dropped": []})
    assert len(party.nodes[0].unmask(honest).shares) == 5
    with pytest.raises(MaskRefusedError, match="no secrets of this sum of round 0, or has unmasked it"):
        party.nodes[0].unmask(honest)


def test_secrets_are_gone_from_the_store_before_shares_are_sent(tmp_path: Path) -> None:
    party = Party(tmp_path, 5)
    sum_, uploads = uploaded(party)
    store = party.nodes[1].store
    assert store.masks()["stage"] == "upload"
    assert (store.folder / "masks.json").stat().st_mode & 0o077 == 0
    sum_.total(uploads)
    assert store.masks() == {}
    assert store.unmasked() == [f"0:{BASE}"]


def test_a_second_sum_of_a_round_from_the_same_base_is_refused(tmp_path: Path) -> None:
    """With one client more or less its update would be the difference of the two."""
    party = Party(tmp_path, 5)
    sum_, uploads = uploaded(party)
    sum_.total(uploads)
    again = party.agreed(dict.fromkeys(range(4), 0.25))
    with pytest.raises(MaskRefusedError, match="has unmasked a sum of round 0 from this base before") as refused:
        party.upload(again, 0, UPDATES[0])
    assert refused.value.spent
    other = party.agreed(EQUAL, 1)
    party.upload(other, 0, UPDATES[0])  # the next round may go on from it


def test_nothing_is_masked_twice_under_the_same_keys(tmp_path: Path) -> None:
    """Both times the same masks: the difference of what is sent would be that of the updates."""
    party = Party(tmp_path, 5)
    sum_, _ = uploaded(party)
    with pytest.raises(MaskRefusedError, match="is at 'upload', not at 'shares'"):
        party.upload(sum_, 0, UPDATES[1])


def test_a_sum_of_two_or_with_one_heavy_client_is_refused(tmp_path: Path) -> None:
    party = Party(tmp_path, 5)
    assert party.agreed({0: 0.5, 1: 0.5}).weights == {}
    asked = WantShares(
        run=RUN,
        token="0" * 32,
        round=0,
        client=0,
        clients=[0, 1],
        **{name: [] for name in LISTS},
    )
    party.nodes[0].store.keep_masks({"token": "0" * 32, "round": 0, "stage": "keys", "secrets": []})
    with pytest.raises(MaskRefusedError, match="2 clients, and 3 are the least"):
        party.nodes[0].share(asked)
    heavy = party.agreed({0: 1.0, 1: 0.1, 2: 0.1})
    with pytest.raises(MaskRefusedError, match="would show an update: one of 3 clients has 83%"):
        party.upload(heavy, 0, UPDATES[0])


def test_shares_for_others_are_not_read(tmp_path: Path) -> None:
    """The server can mix envelopes up, but not open them."""
    one, two, three = (Secrets.drawn().cipher for _ in range(3))
    sealed = seal(one, public_bytes(two), 1, 2, (b"seed", b"key"))
    assert unseal(two, public_bytes(one), 1, 2, sealed) == (b"seed", b"key")
    with pytest.raises(ValueError, match="not sealed with the announced key"):
        unseal(three, public_bytes(one), 1, 3, sealed)
    with pytest.raises(ValueError, match="from client 1 to client 2, not from 1 to 9"):
        unseal(two, public_bytes(one), 1, 9, sealed)
    party = Party(tmp_path, 3)
    sum_ = party.agreed(dict.fromkeys(range(3), 1.0))
    order = sum_.order_for(0)
    mixed = order.model_copy(update={"sealed": order.sealed[::-1]})
    with pytest.raises(MaskRefusedError, match="not sealed with the announced key"):
        party.nodes[0].prepare(order_of(0), mixed, BASE)


# Wrong and missing shares


def test_a_wrong_share_is_noticed_and_done_without(tmp_path: Path) -> None:
    def wrong(client: int, told: WireRecord) -> WireRecord:  # in the secret's first bytes: its padding stays right
        if not isinstance(told, Unmasking) or client != 1:
            return told
        return told.model_copy(
            update={"shares": [share[:4] + bytes([share[4] ^ 1]) + share[5:] for share in told.shares]}
        )

    party = Party(tmp_path, 5, answered=wrong)
    sum_, uploads = uploaded(party)
    assert sum_.total(uploads).tolist() == plain(UPDATES, EQUAL, range(5)).tolist()  # four of five shares are right
    party.silent = {WANT_UNMASKING: {4}}
    with pytest.raises(GivenUpError, match="the shares of client 0 do not rebuild its mask"):
        sum_, uploads = uploaded_again(party)
        sum_.total(uploads)


def uploaded_again(party: Party) -> tuple[MaskedRound, dict[int, Any]]:
    sum_ = party.agreed(EQUAL, 1)
    return sum_, {one: party.upload(sum_, one, UPDATES[one]) for one in sum_.weights}


def test_too_few_shares_give_the_sum_up(tmp_path: Path) -> None:
    party = Party(tmp_path, 5, silent={WANT_UNMASKING: {3, 4}})
    sum_, uploads = uploaded(party)
    with pytest.raises(GivenUpError, match="3 shares of client 0 came, and 4 rebuild its mask"):
        sum_.total(uploads)


# Whose keys they are


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    return keys.make_fleet(tmp_path_factory.mktemp("fleets") / "fleet", nodes=["edge-0", "edge-1", "edge-2"])


def enrolled(tmp_path: Path, fleet: FleetFolder) -> Party:
    nodes = Roster.load(fleet.registry).nodes
    cards = {one.client_id: Card(one.name, one.public_key, one.card or "") for one in nodes}
    return Party(
        tmp_path, 3, identities={one.client_id: Identity(fleet.bundle(one.name)) for one in nodes}, cards=cards
    )


def test_enrolled_nodes_know_each_others_keys(tmp_path: Path, fleet: FleetFolder) -> None:
    party = enrolled(tmp_path, fleet)
    sum_ = party.agreed(dict.fromkeys(range(3), 1.0))
    uploads = {one: party.upload(sum_, one, UPDATES[one]) for one in range(3)}
    assert sum_.total(uploads).tolist() == plain(UPDATES, EQUAL, range(3)).tolist()


def test_a_server_that_puts_its_own_keys_in_is_refused(tmp_path: Path, fleet: FleetFolder) -> None:
    party, own = enrolled(tmp_path, fleet), public_bytes(Secrets.drawn().cipher)

    def swapped(client: int, asked: WireRecord) -> WireRecord:
        if isinstance(asked, WantShares) and client == 0:
            return asked.model_copy(update={"ciphers": [own, *asked.ciphers[1:]]})
        return asked

    party.changed = swapped
    party.agreed(dict.fromkeys(range(3), 1.0))
    assert party.refused == ["the keys of client 1 are not believed: its keys are not signed by the enrolled node"]


def test_a_card_of_another_authority_or_none_is_refused(
    tmp_path: Path, fleet: FleetFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = keys.make_fleet(tmp_path_factory.mktemp("others") / "fleet", nodes=["edge-0", "edge-1", "edge-2"])
    party = enrolled(tmp_path, fleet)
    strange = Roster.load(other.registry)["edge-1"]
    party.cards = {**party.cards, 1: Card(strange.name, strange.public_key, strange.card or ""), 2: Card()}
    party.agreed(dict.fromkeys(range(3), 1.0))
    assert party.refused == [
        "the keys of client 1 are not believed: the fleet's authority did not sign it",
        "the keys of client 2 are not believed: it has no card; the fleet's owner signs one with: leanfed deploy keys "
        "FLEET --roll-out",
        "the keys of client 1 are not believed: the fleet's authority did not sign it",
    ]


def test_nodes_that_were_added_without_the_authoritys_key_are_signed_by_the_next_roll_out(tmp_path: Path) -> None:
    fleet = keys.make_fleet(tmp_path / "fleet", nodes=["edge-0"])
    Roster(tuple(replace(node, card=None) for node in Roster.load(fleet.registry).nodes)).save(fleet.registry)
    elsewhere = (fleet.ca / "ca.key").rename(tmp_path / "ca.key")
    keys.add_node(fleet, "edge-1")
    assert [node.card for node in Roster.load(fleet.registry).nodes] == [None, None]
    elsewhere.rename(fleet.ca / "ca.key")
    keys.roll_out(fleet)
    assert all(node.card for node in Roster.load(fleet.registry).nodes)
