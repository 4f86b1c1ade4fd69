"""`leanfed deploy`: keys, server, node, run and status of a real fleet on Flower."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from leanfed.cli.display import notices, screen
from leanfed.cli.display_run import show_summary
from leanfed.cli.options import DataDir
from leanfed.errors import InputError

if TYPE_CHECKING:
    from leanfed.deployment.operations.folder import FleetFolder
    from leanfed.deployment.operations.run_keeper import Value
    from leanfed.deployment.operations.submit import Submitted

deploy = typer.Typer(
    help="Run a real fleet of devices on Flower: TLS, node keys and an audit log by default.\n\n"
    "Example: leanfed deploy keys fleet --nodes 3",
    no_args_is_help=True,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")]
FolderArgument = Annotated[Path, typer.Argument(help="The deployment folder.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption, no keys. Only on loopback, to try things out.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show what Flower's programs print; it is in the logs anyway.")
]


@deploy.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="The deployment folder; made where it does not exist.")],
    nodes: Annotated[int, typer.Option(min=0, help="A new fleet: make so many nodes, edge-0, edge-1, ...")] = 0,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address by which nodes call the server; may be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="A new fleet: the port that nodes call.")] = 9092,
    control_port: Annotated[
        int, typer.Option(min=1, max=65535, help="A new fleet: SuperLink's port on loopback.")
    ] = 9093,
    add: Annotated[list[str] | None, typer.Option(help="Add a node by this name; may be repeated.")] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="With --add: the device's own public key; the private one stays there.")
    ] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="Shut this node out, at once; may be repeated.")] = None,
    renew: Annotated[list[str] | None, typer.Option(help="Renew `server` or a node by its name.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="With --add: the most training samples this node may claim.")
    ] = None,
    roll_out: Annotated[
        bool, typer.Option("--roll-out", help="Sign the app of this version: nodes run it and no other.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long what is issued now is valid.")] = 397,
    as_json: Json = False,
) -> None:
    """Make a fleet's keys, add, revoke and renew; without options, show them.

    Example: leanfed deploy keys fleet --host fleet.example.org --nodes 3
    """
    _require()
    from leanfed.deployment.operations import keys as issue
    from leanfed.deployment.operations.folder import FleetFolder

    if public_key is not None and len(add or []) != 1:
        raise InputError("--public-key is the key of one node. Give it with exactly one --add NAME.")
    if (folder / "fleet.json").is_file():
        fleet = FleetFolder.open(folder)
        if nodes:
            raise InputError(f"{folder} is a fleet already. Add nodes by name: leanfed deploy keys {folder} --add NAME")
        fleet = issue.change_hosts(fleet, host, days) if host else fleet
    else:
        names = [f"edge-{number}" for number in range(nodes)]
        places = {"port": port, "control_port": control_port}
        fleet = issue.make_fleet(folder, hosts=host or [], nodes=names, days=days, **places)
    for name in add or []:
        issue.add_node(fleet, name, public_key=public_key, days=days, samples=samples)
    _change_keys(fleet, revoke or [], renew or [], days, roll_out)
    _show_keys(fleet, as_json)


def _change_keys(fleet: FleetFolder, revoke: list[str], renew: list[str], days: int, roll_out: bool) -> None:
    from leanfed.deployment.operations import keys as issue

    for name in revoke:
        issue.revoke_node(fleet, name)
    for name in renew:
        issue.renew(fleet, name, days)
    if roll_out:
        issue.roll_out(fleet)


@deploy.command()
def server(
    folder: FolderArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port.", show_default="the fleet's")] = None,
    max_upload_mb: Annotated[
        int, typer.Option(min=1, max=65536, help="Largest message a node may send, in MiB.")
    ] = 256,
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs/--no-keep-runs", help="Go on by itself with a run that ended early.")
    ] = True,
    insecure: Insecure = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Serve a fleet in the foreground until Ctrl-C or SIGTERM: SuperLink, its SuperExec, and the door that nodes call.

    Example: leanfed deploy server fleet --host 0.0.0.0
    """
    _require()
    from leanfed.deployment.operations.folder import FleetFolder
    from leanfed.deployment.operations.launch import ServerOptions, run_server

    options = ServerOptions(host, port, max_upload_mb, insecure, keep_runs)
    run_server(FleetFolder.open(folder), options, _teller(as_json), _echo if verbose else None)


@deploy.command()
def node(
    folders: Annotated[list[Path], typer.Argument(help="The folder of a node; several are run side by side.")],
    server: Annotated[
        str | None, typer.Option(help="host:port of the server.", show_default="as the folder says")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The node's own port on loopback.", show_default="a free one")
    ] = None,
    data_dir: DataDir = None,
    data: Annotated[str | None, typer.Option(help="dealt: its share of the data set; own: all that is there.")] = None,
    max_retries: Annotated[
        int, typer.Option(min=0, help="How often to try again before it has joined; then it tries without end.")
    ] = 10,
    warm: Annotated[
        bool, typer.Option("--warm/--cold", help="Hold torch and the data in memory between messages, or start anew.")
    ] = True,
    insecure: Insecure = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Join a fleet in the foreground until Ctrl-C or SIGTERM; says why where the server refuses.

    Example: leanfed deploy node fleet/nodes/edge-0
    """
    _require()
    from leanfed.deployment.operations.folder import Bundle
    from leanfed.deployment.operations.nodes import NodeOptions, join

    if data not in (None, "dealt", "own"):
        raise InputError(f"--data is {data!r}, but must be dealt or own.")
    options = NodeOptions(server, port, data_dir, data, max_retries, insecure, warm)
    bundles = [Bundle.open(path) for path in folders]
    join(bundles, options, _teller(as_json), _echo if verbose else None)


@deploy.command()
def run(
    folder: FolderArgument,
    config: Annotated[Path | None, typer.Argument(help="Settings file (TOML), as for `leanfed run`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to make.", show_default="FOLDER/runs/NAME-TIME")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, for example --set training.learning_rate=0.05"),
    ] = None,
    fleet: Annotated[
        list[str] | None,
        typer.Option("--fleet", help="Change one key of the run-config, for example --fleet deadline-s=60"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Overrides the seed of the settings.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit and return; follow with `leanfed deploy status`.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train on the fleet whose server runs on this machine, and follow the run; Ctrl-C stops it, --resume goes on.

    Example: leanfed deploy run fleet experiment.toml --fleet deadline-s=60
    """
    _require()
    from leanfed.deployment.operations import submit as jobs
    from leanfed.deployment.operations.folder import FleetFolder
    from leanfed.results import RunFolder

    opened = FleetFolder.open(folder)
    keys_given = jobs.parse_changes(fleet or [])
    if (config is None) == (resume is None):
        raise InputError("A run needs a settings file, or --resume FOLDER to go on with one; not both.")
    if resume is not None:
        if change or seed is not None or out is not None:
            raise InputError("--resume goes on with the settings of the run. Leave out --set, --seed and --out.")
        submitted = jobs.resume(opened, resume, keys_given)
    elif config is not None:
        changes = [*(change or []), *([] if seed is None else [f"seed={seed}"])]
        submitted = _submit_new(opened, config, changes, out, keys_given)
    if detach:
        _print({"run_id": submitted.run_id, "folder": str(submitted.folder)}, as_json)
        return
    notices.print(f"run {submitted.run_id} in {submitted.folder}", highlight=False, soft_wrap=True)
    jobs.follow(opened, submitted, lambda text: notices.print(text, end="", markup=False, highlight=False))
    show_summary(json.loads(RunFolder(submitted.folder).summary.read_text()), submitted.folder, as_json)


def _submit_new(
    fleet: FleetFolder, config: Path, changes: list[str], out: Path | None, keys_given: Mapping[str, Value]
) -> Submitted:
    from leanfed.deployment.operations import submit as jobs
    from leanfed.runs.settings import Settings

    settings = Settings.from_toml(config, changes)
    target = out or fleet.path / "runs" / f"{config.stem}-{datetime.now():%Y%m%d-%H%M%S}"
    return jobs.submit(fleet, settings, target, keys_given)


@deploy.command()
def status(
    folder: FolderArgument,
    hours: Annotated[float, typer.Option(min=0, help="Count refusals of the last hours.")] = 24.0,
    as_json: Json = False,
) -> None:
    """Show the server, its nodes, the newest run and who was refused; of a node's folder, how that node is.

    Example: leanfed deploy status fleet --json
    """
    _require()
    from leanfed.deployment.operations.folder import FleetFolder
    from leanfed.deployment.operations.node_state import node_status
    from leanfed.deployment.operations.status import status as look

    if (folder / "node.json").is_file():
        _print(node_status(folder), as_json)
        return
    facts = look(FleetFolder.open(folder), hours)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    screen.print(f"{facts['fleet']}: server {facts['server']}; certificate ends {facts['certificate_ends'][:10]}")
    _table(facts["nodes"], ("node", "client_id", "state", "expires"))
    if facts["rounds"]:
        rounds = facts["rounds"]
        known = "" if rounds["accuracy"] is None else f", accuracy {rounds['accuracy']:.4f}"
        screen.print(f"{rounds['run']}: {rounds['done']} of {rounds['rounds']} rounds{known}", soft_wrap=True)
    if facts["refusals"]:
        _table(facts["refusals"], ("why", "who", "times"))
    else:
        screen.print(f"nobody was refused in the last {hours:g} hours")


def _require() -> None:
    """Refuse to go on without flwr, naming the command that installs it."""
    from leanfed.deployment.operations.extra import require_flower

    require_flower()


def _show_keys(fleet: FleetFolder, as_json: bool) -> None:
    from leanfed.deployment.operations.keys import expiry
    from leanfed.deployment.operations.roster import Roster

    ends = {name: expiry(path).isoformat() for name, path in _certificates(fleet).items()}
    rows = Roster.load(fleet.registry).rows()
    facts = {"fleet": str(fleet.path), "hosts": list(fleet.hosts), "certificates": ends, "nodes": rows}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    screen.print(f"{fleet.path}: nodes call {', '.join(fleet.hosts)} port {fleet.port}", soft_wrap=True)
    screen.print("; ".join(f"{name} certificate ends {end[:10]}" for name, end in ends.items()))
    _table(rows, ("node", "client_id", "key", "expires", "revoked"))


def _certificates(fleet: FleetFolder) -> dict[str, Path]:
    return {"authority": fleet.ca / "ca.crt", "server": fleet.server / "server.crt"}


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]).removesuffix("+00:00") for name in columns))
    screen.print(table)


def _teller(as_json: bool) -> Callable[[str], None]:
    """How a long-lived verb says what happens: a line, or one JSON object a line."""
    return lambda text: _print({"message": text}, as_json)


def _print(value: dict[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(value) if as_json else "; ".join(str(part) for part in value.values()))


def _echo(text: str) -> None:
    notices.print(text, markup=False, highlight=False, soft_wrap=True)
