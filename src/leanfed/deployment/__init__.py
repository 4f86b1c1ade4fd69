"""The real world: the same algorithm on Flower. The only room that imports flwr (extra `leanfed[flower]`).

`learning/` is what server and nodes do in a round, `masking/` how sums hide updates, `operations/` how a fleet is set
up and kept running, `door/` the one port that nodes reach. Flower runs two apps, `learning.server_app:app` and
`learning.client_app:app`; `write_app(folder)` in `operations.flower_app` writes the folder that `flwr run` ships: names
and defaults, no code.

Run-config keys (`flwr run --run-config FILE.toml`; defaults and meaning in `learning.config.RunConfig`):

    settings        the experiment as one JSON text: `json.dumps(Settings.from_toml(path).resolved())`
    run-folder      where the server keeps the run; an absolute path on the server
    resume          true: go on with the run in run-folder; `settings` must be that folder's settings.json
    audit           the audit log on the server; empty: run-folder/audit.jsonl
    nodes, join-s   how many nodes to wait for before the first round (0: one per client), and how long
    deadline-s      seconds until a round goes on without the nodes that have not answered
    quorum          share of a round's participants (absent ones included) whose updates must have arrived by then
    attempts        how often a round without quorum is tried again before the run stops (resume goes on)
    close-at        share of a round's clients whose updates close it before the deadline
    over-selection  share of clients to ask beyond those that the settings ask
    late            drop or use updates that come after their round, at most late-rounds late
    rest-rounds     the most rounds that a client which missed deadlines is left out
    norm-bound, divergence, max-samples, samples-ratio   bounds on what one client may be and claim
    bindings        which node is whose key; roll-back, release: on a resume, see docs/fleet_rounds.md
    offences        refused updates after which a node is set aside
    poll-s          seconds between two polls for replies
    fleet           measured: plan from what devices report; profile: from the settings' own fleet (or fleet file)
    mask-range      with radio.masked_sum: nodes cut the values of their weighted updates to it
    store, data-dir for the virtual nodes of Flower's simulation engine, which have no node-config

Node-config keys (`flower-supernode --node-config "client-id=3 store='/var/lib/leanfed' data-dir='/data'"`):

    client-id       which client of the settings this node is: 0, 1, ...
    store           the node's own folder (0700): head, memories and round of every run
    data-dir        where its data sets are; empty: LEANFED_DATA
    identity        the folder with node.key and ca.crt, by which keys of masked sums are signed and checked
    data            dealt (default): its share of the whole data set, as in a simulation; own: all that data-dir holds
"""
