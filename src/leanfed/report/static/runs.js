"use strict";
// The list of runs; rows change in place as the server tells.
(function (lf) {
  const { make, at } = lf;
  const chosen = new Set(); // runs to compare
  let rows = JSON.parse(at("data").textContent), lost = false;

  function acted(row, trouble) {
    lf.trouble(trouble);
    if (row) rows = rows.map((each) => (each.name === row.name ? row : each));
    draw();
  }

  function line(row) {
    const left = row.seconds_left === null ? "" : `, ${lf.duration(row.seconds_left)} left`;
    const name = make("td", { class: "text" }, make("a", { href: lf.place("run", row.name) }, row.name),
      row.title === row.name ? null : make("div", { class: "muted" }, row.title), row.trouble ? make("div", { class: "trouble" }, row.trouble) : null);
    const cells = [lf.badge(row), make("span", {}, lf.progressBar(row), make("span", { class: "muted" }, left.slice(2))), row.method, row.data, row.seed ?? "–"];
    const tick = make("input", { type: "checkbox", checked: chosen.has(row.name), "aria-label": `Compare ${row.name}`, onchange: (event) => { if (event.target.checked) chosen.add(row.name); else chosen.delete(row.name); offer(); } });
    return make("tr", { "data-run": row.name }, make("td", {}, tick), name, cells.map((cell) => make("td", {}, cell)),
      make("td", { class: "number" }, row.accuracy === null ? "–" : row.accuracy.toFixed(4)), make("td", {}, lf.action(row, acted)));
  }

  function offer() {
    for (const name of [...chosen]) if (!rows.some((row) => row.name === name)) chosen.delete(name);
    at("compare").disabled = chosen.size < 2;
  }
  at("compare").addEventListener("click", () => window.location.assign(`/compare?${new URLSearchParams([...chosen].map((name) => ["run", name]))}`));

  function draw() {
    offer();
    const heads = ["compare", "run", "state", "rounds", "method", "data", "seed", "accuracy", "action"];
    const table = make("table", {}, make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col", class: head === "accuracy" ? "number" : "" }, head)))), make("tbody", {}, rows.map(line)));
    const focused = document.activeElement?.closest?.("[data-run]")?.dataset.run, verb = document.activeElement?.dataset?.action;
    at("runs").replaceChildren(rows.length ? make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table: runs" }, table) : make("p", { class: "muted" }, "No run yet. Start one with: leanfed run CONFIG.toml --out in this folder; it appears here by itself."));
    if (focused && verb) [...document.querySelectorAll("[data-run]")].find((each) => each.dataset.run === focused)?.querySelector("button")?.focus();
    const going = rows.filter((row) => row.state === "running").length;
    at("subtitle").textContent = lost ? "The server does not answer; trying again." : `${rows.length} run${rows.length === 1 ? "" : "s"}, ${going} going on.`;
  }

  draw();
  lf.follow("/events", (told) => { rows = told; draw(); }, (now) => { if (now !== lost) { lost = now; draw(); } });
})(window.leanfed);
