"""What a run folder tells of how it was made."""

from __future__ import annotations

import pytest

from leanfed.runs.environment import environment


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["/usr/bin/leanfed", "run", "a b.toml"], "leanfed run 'a b.toml'"),
        (["/src/leanfed/cli/__main__.py", "demo"], "leanfed demo"),
        (["/src/leanfed/cli/app.py", "demo"], "leanfed demo"),
        (["flwr-serverapp", "--token", "8f3a", "--insecure"], "flwr-serverapp --token ... --insecure"),
        (["flwr-serverapp", "--token=8f3a"], "flwr-serverapp --token=..."),
    ],
)
def test_the_command_can_be_given_again_and_holds_no_secret(
    given: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", given)
    assert environment()["command"] == told
