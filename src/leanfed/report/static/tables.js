"use strict";
// The tables of the page: runs, targets, settings, environment; every text is put in as text.
(function (lf) {
  const { make } = lf;

  /** A table in a box that scrolls sideways where the screen is narrow, with downloads. */
  lf.table = function (name, columns, rows, plainRows) {
    const cell = (value) => (value instanceof Node || typeof value === "string" ? value : String(value));
    const head = make("tr", {}, columns.map((column) => make("th", { class: column.number ? "number" : "", scope: "col" }, column.label)));
    const body = rows.map((row) => make("tr", {}, row.map((value, i) => make("td", { class: columns[i].number ? "number" : columns[i].key ? "text key" : "text" }, cell(value)))));
    const table = { columns: columns.map((column) => column.label), rows: plainRows || rows };
    return make("div", {},
      make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": `Table: ${name}` }, make("table", {}, make("thead", {}, head), make("tbody", {}, body))),
      make("div", { class: "save" }, make("span", { class: "note" }),
        make("button", { type: "button", "data-save": "csv", onclick: () => lf.save(`leanfed-${name}.csv`, "text/csv", lf.csv(table)) }, "CSV"),
        make("button", { type: "button", "data-save": "json", onclick: () => lf.save(`leanfed-${name}.json`, "application/json", JSON.stringify(table)) }, "JSON")));
  };

  const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
  /** A value with the range over seeds below it, where there are several. */
  const ranged = (text, values, show) => (values.length > 1 ? [text, make("small", {}, `${show(Math.min(...values))}–${show(Math.max(...values))}`)] : [text]);

  /** A target in words. */
  lf.aim = (data, target) => (data.main.name === "accuracy" ? lf.percent(target, 0) : `a ${data.main.label} of ${lf.number(target, 3)}`);
  /** The costs of the summary: those that curves are drawn over, but for the count of rounds. */
  const summed = (data) => data.costs.filter((cost) => cost.summed && cost.plotted !== null);

  function summaryRow(data, group) {
    const runs = group.runs.map((place) => data.runs[place]), of = (key) => runs.map((run) => run.final[key]).filter((value) => value !== null && value !== undefined);
    const rate = (key) => (of(key).length ? make("span", {}, ranged(mean(of(key)).toFixed(4), of(key), (value) => value.toFixed(3))) : "–");
    const cost = ({ column, scale }) => (of(column).length ? make("span", {}, ranged(lf.number(mean(of(column)) / scale), of(column), (value) => lf.number(value / scale, 3))) : "–");
    const open = runs.filter((run) => !run.finished).map((run) => `${run.rounds} of ${run.of_rounds ?? "?"} rounds`);
    const label = open.length ? make("span", {}, group.label, make("small", {}, `not finished: ${open.join(", ")}`)) : group.label;
    return [label, ...data.main.shown.map(rate), ...summed(data).map(cost), runs.map((run) => run.seed ?? "–").join(", "), String(Math.max(...runs.map((run) => run.rounds))), String(group.clients)];
  }

  lf.summaryTable = function (data) {
    const rows = data.groups.map((group) => summaryRow(data, group)), text = (value) => (value instanceof Node ? value.firstChild.textContent : value);
    const numbers = [...data.main.shown.map((name) => data.scores[name].label), ...summed(data).map(({ narrow }) => narrow), "seeds", "rounds", "clients"];
    return lf.table("runs", [{ label: "method" }, ...numbers.map((label) => ({ label, number: true }))], rows, rows.map((row) => row.map(text)));
  };

  const PAPER = ["paper: time [s]", "difference", "paper: share of FedPer's time", "ours"];

  /** One target: what it cost every method, and the paper's value beside ours where the run is in the catalogue. */
  lf.targetTable = function (data, target) {
    const rows = target.rows.filter((row) => !lf.state.hidden.has(row.group)), paper = rows.some((row) => row.paper);
    const columns = [{ label: "method" }, ...data.costs.map(({ head }) => ({ label: `${head}, sustained (first)`, number: true })),
      ...(paper ? PAPER.map((label) => ({ label, number: true })) : [])];
    const best = Object.fromEntries(data.costs.map(({ axis }) => [axis, Math.min(...rows.map((row) => row.mean[axis] ?? Infinity))]));
    const plainRows = [], shown = rows.map((row) => {
      const label = data.groups[row.group].label;
      const cells = data.costs.map(({ axis, summed: sum }) => {
        const first = row.first[axis] === null ? "" : ` (${lf.number(row.first[axis], 3)})`;
        if (row.mean[axis] === null) return row.reached && row.reached < row.of ? `${row.reached} of ${row.of} seeds${first}` : first ? `never${first}` : sum || row.reached ? "–" : "not reached";
        const parts = [...ranged(lf.number(row.mean[axis]), row.seeds[axis], (value) => lf.number(value, 3)), first];
        return make(row.mean[axis] === best[axis] && rows.length > 1 ? "strong" : "span", {}, parts);
      });
      const told = !paper ? [] : row.paper ? [row.paper.seconds, row.paper.difference, row.paper.share, row.paper.our_share] : [null, null, null, null];
      plainRows.push([label, ...data.costs.map(({ axis }) => row.mean[axis]), ...told]);
      return [label, ...cells, ...told.map((value, i) => (i === 1 && value !== null ? `${value > 0 ? "+" : ""}${(100 * value).toFixed(0)} %` : lf.number(value, 3)))];
    });
    const note = rows.find((row) => row.paper && row.paper.about);
    return make("div", { class: "card whole", "data-target": String(target.target) },
      make("h3", {}, `What it costs to reach and keep ${lf.aim(data, target.target)}${data.main.name === "accuracy" ? " accuracy" : ""}`),
      make("p", { class: "lead" }, `Sustained: from then on no evaluation falls ${data.main.name === "accuracy" ? "more than half a point below" : "behind"} the target; in brackets the first crossing, as the paper has it. Linear interpolation between evaluations; means over seeds with their range, the best in bold.${note ? ` The paper's values are those of its ${note.paper.about[0].toLowerCase()}${note.paper.about.slice(1)}.` : ""}`),
      lf.table(`target-${target.target}`, columns, shown, plainRows));
  };

  /** Every cut of the model beside the one that the program chose; nothing where the settings named it. */
  lf.cutsTable = function (data) {
    const found = data.runs[lf.state.run].cuts;
    if (!found) return [];
    const columns = ["cut after", "shared", "private", "s a round", "J a round", "n*/n", ""].map((label, i) => ({ label, number: i > 0 && i < 6 }));
    const rows = found.cuts.map((cut) => [cut.layer, cut.shared.toLocaleString("en"), cut.private.toLocaleString("en"), ...[cut.seconds, cut.joules, cut.gain].map((value) => (value === null ? "–" : lf.number(value, 3))),
      cut.refused || (cut.layer === found.chosen ? "chosen" : "")]);
    return [make("p", {}, `The program chose the cut after ${found.chosen}, ${found.why}.`), lf.table("cuts", columns, rows)];
  };

  lf.settingsTable = function (data) {
    const run = data.runs[lf.state.run];
    const tag = (source) => make("span", { class: `tag ${source in data.sources ? source : "unknown"}`, title: data.sources[source] || "" }, source);
    // Long keys break after their dots and underscores, not within a word.
    const key = (text) => make("span", {}, text.split(/(?<=[._])/).flatMap((part) => [part, make("wbr")]));
    const rows = run.settings.map((row) => [key(row.key), row.value, tag(row.source), row.meaning]);
    return lf.table("settings", [{ label: "setting", key: true }, { label: "value" }, { label: "source" }, { label: "meaning" }], rows, run.settings.map((row) => [row.key, row.value, row.source, row.meaning]));
  };
})(window.leanfed);
