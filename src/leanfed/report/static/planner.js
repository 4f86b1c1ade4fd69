"use strict";
// The planner page: ask the server whenever a slider moves, show its answer, let it be taken along.
(function (lf) {
  const { make, at } = lf, presets = JSON.parse(at("presets").textContent);
  const CURVES = ["participation", "bandwidth", "worth"]; // figures that need more than the plan
  const NAMED = 8; // clients of a list that stand outside its fold
  const QUIET_MS = 120; // curves are asked for once the sliders rest
  let asking = false, again = false, resting = 0, moved = performance.now();

  function changed() {
    moved = performance.now();
    if (asking) { again = true; return; }
    ask();
  }

  async function ask() {
    asking = true;
    clearTimeout(resting); // the curves of a plan that is no longer asked for
    const question = lf.question(), began = moved;
    document.body.dataset.state = "asking";
    try {
      const told = await lf.post("/api/plan", question);
      lf.trouble("");
      show(question, told, began);
    } catch (error) {
      lf.trouble(error.message);
      document.body.dataset.state = "refused";
    }
    asking = false;
    if (again) { again = false; ask(); }
  }

  function show(question, told, began) {
    lf.data = { ...told, asked: question, curves: lf.data?.curves ?? null };
    if (!lf.figures[0].card) build();
    lf.drawCard(lf.figures.find((figure) => figure.id === "allocation"));
    document.body.dataset.redrawMs = String(Math.round(performance.now() - began));
    lf.drawCard(lf.figures.find((figure) => figure.id === "rules"));
    showVerdict(told);
    showRules(told.rules);
    showAbsent(told);
    showEveryone(told.clients);
    at("command").textContent = told.command;
    document.body.dataset.state = "shown";
    clearTimeout(resting);
    resting = setTimeout(() => askCurves(question), QUIET_MS);
  }

  const sameBut = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  async function askCurves(question) {
    try {
      const curves = await lf.post("/api/curves", question);
      if (!sameBut(lf.data.asked, question)) return;
      lf.data.curves = curves;
      for (const figure of lf.figures) if (CURVES.includes(figure.id)) lf.drawCard(figure);
      document.body.dataset.state = "whole";
    } catch (error) { lf.trouble(error.message); }
  }

  function build() {
    for (const figure of lf.figures) at("planner-cards").append(lf.makeCard(figure));
  }

  function showVerdict(told) {
    const { plan, summary } = told, fast = told.form === "fast", now = told.rules.find((row) => row.solver === (fast ? "fast" : "certified"));
    const value = fast ? [["fleet's gradient per second", lf.percent(now?.worth_per_s)]] : [
      ["objective (lower is better)", plan.objective === null ? "–" : lf.number(plan.objective)],
      ["certified gap to the best", plan.relative_gap === null ? "–" : plan.relative_gap.toExponential(1)],
    ];
    const facts = [
      ...value, ["take part", `${summary.participants} of ${summary.clients}`], ["round ends after [s]", lf.number(now?.slowest_s, 3)], ["energy of all [J]", lf.number(now?.energy_j, 3)],
      ["mean k", lf.number(summary.mean_k, 3)], ["mean r", lf.number(summary.mean_r, 3)],
      ...(fast ? [] : [["shadow price of 1 MHz", told.price_per_mhz === null ? "–" : lf.number(told.price_per_mhz, 3)], ["starved", String(summary.starved)]]),
      [fast ? "sit out" : "excluded", String(summary.excluded)],
      ["solved in", `${(1000 * plan.seconds).toFixed(1)} ms`],
    ];
    const word = plan.objective === null ? "Infeasible: nobody can take part" : "Solved";
    const warning = told.warning ? [make("p", { class: "flaw", id: "erased" }, told.warning)] : [];
    at("verdict").replaceChildren(make("h2", {}, word), make("p", { class: "lead", id: "words" }, `${told.aim[0].toUpperCase()}${told.aim.slice(1)}: ${told.words}.`), ...warning, make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
  }

  function showRules(rules) {
    const columns = ["plan", "take part", "gradient per s", "objective", "mean\u00a0k", "mean\u00a0r", "excluded", "starved", "slowest device [s]", "energy of all [J]", "uploads [Mbit]"];
    const rows = rules.map((row) => [row.label, String(row.participants), lf.percent(row.worth_per_s), lf.number(row.objective), lf.number(row.mean_k, 3), lf.number(row.mean_r, 3), String(row.excluded), String(row.starved), lf.number(row.slowest_s, 3), lf.number(row.energy_j, 3), lf.number(row.megabits, 3)]);
    at("rules").replaceChildren(make("h2", {}, "Ways of planning, in numbers"), lf.table("rules", columns.map((label, i) => ({ label, number: i > 0 })), rows));
  }

  function showAbsent(told) {
    const opened = Boolean(at("absent").querySelector("details[open]"));
    const items = (entries) => make("ul", {}, entries.map((entry) => make("li", {}, make("strong", {}, entry.name), `: ${entry.why}`)));
    const rest = (entries) => (entries.length ? [make("details", { open: opened }, make("summary", {}, `${entries.length} more`), items(entries))] : []);
    const list = (title, entries) => (entries.length ? [make("p", {}, title), items(entries.slice(0, NAMED)), ...rest(entries.slice(NAMED))] : []);
    const nobody = told.excluded.length + told.starved.length === 0 ? [make("p", { class: "muted" }, "Everyone takes part in earnest.")] : [];
    at("absent").replaceChildren(make("h2", {}, "Who is left out, and what would help"), ...nobody,
      ...list(told.form === "fast" ? `${told.excluded.length} sit this round out; a run asks everyone at least once in ten.` : `${told.excluded.length} excluded: they cannot take part even alone on the band.`, told.excluded),
      ...list(`${told.starved.length} starved: they could take part, but the band is worth more elsewhere. A floor of k gives everyone some.`, told.starved));
  }

  function showEveryone(clients) {
    const far = clients.distance_m !== null;
    const columns = ["client", far ? "distance [m]" : "gain [dB]", "power [dBm]", "CPU [GHz]", "k", "r", "share [%]", "latency [s]", "energy [J]", "held by"];
    const place = far ? clients.distance_m : clients.gain_db;
    const rows = () => clients.name.map((name, n) => [name, lf.number(place[n], 3), lf.number(clients.power_dbm[n], 3), lf.number(clients.cpu_ghz[n], 3), clients.k[n].toFixed(3), clients.r[n].toFixed(3),
      (100 * clients.share[n]).toFixed(3), lf.number(clients.latency_s[n], 3), lf.number(clients.energy_j[n], 3), clients.held_by[n]]);
    const box = at("everyone"), fill = () => box.lastElementChild.replaceChildren(lf.table("clients", columns.map((label, i) => ({ label, number: i > 0 && i < 9 })), rows()));
    box.querySelector("summary").textContent = `Every client (${clients.name.length})`;
    box.ontoggle = () => { if (box.open) fill(); };
    if (box.open) fill();
  }

  async function takeFile(file) {
    const fleet = { name: file.name, text: await file.text() };
    try {
      const told = await lf.post("/api/plan", { ...lf.question(), radius_m: null, seed: 0, clients: null, fleet, changes: {} });
      lf.useFleet(fleet, told.clients.name.length);
      lf.setSlider("bandwidth_hz", told.start.bandwidth_hz);
      lf.trouble("");
      changed();
    } catch (error) { lf.trouble(error.message); document.body.dataset.state = "refused"; }
  }

  at("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(lf.data.command); at("copy").textContent = "Copied"; } catch {
      getSelection().selectAllChildren(at("command")); // no clipboard without TLS away from loopback: leave it selected
      at("copy").textContent = "Selected; press Ctrl-C";
    }
    setTimeout(() => { at("copy").textContent = "Copy the command"; }, 2500);
  });
  at("save-plan").addEventListener("click", () => lf.save("plan.json", "application/json", JSON.stringify(lf.data.plan) + "\n"));
  at("save-problem").addEventListener("click", () => lf.save("problem.json", "application/json", lf.data.problem_file));

  lf.buildSliders(presets, changed, takeFile);
  for (const key of ["aim_k", "aim_r"]) lf.setSlider(key, 0.5);
  ask();
})(window.leanfed);
