"use strict";
// Figures that put all methods side by side.
(function (lf) {
  /** The costs that curves are drawn over, in the order of the choices. */
  const plotted = (data) => data.costs.filter((cost) => cost.plotted !== null).sort((a, b) => a.plotted - b.plotted);
  const drawn = (data) => Object.entries(data.scores).filter(([, score]) => score.title);
  const shown = (data) => data.groups.map((group, number) => ({ group, number })).filter(({ number }) => !lf.state.hidden.has(number));

  /** The sentence under the title: who gets to the highest target, and keeps it, first. */
  function leader(data) {
    for (const { target, rows } of [...data.targets].reverse()) {
      const there = rows.filter((row) => row.mean.latency_s !== null && !lf.state.hidden.has(row.group))
        .sort((a, b) => a.mean.latency_s - b.mean.latency_s);
      if (!there.length) continue;
      const [first, second] = there, name = (row) => data.groups[row.group].label;
      const partly = rows.filter((row) => row.reached && row.reached < row.of && !lf.state.hidden.has(row.group));
      const clauses = [`${name(first)} reaches and keeps ${lf.aim(data, target)}${shown(data).length > 1 ? " first" : ""}${partly.length ? " on every seed" : ""}${shown(data).length > 1 ? "," : ""} after ${lf.number(first.mean.latency_s, 3)} simulated seconds`];
      if (second) clauses.push(`${name(second)} follows after ${lf.number(second.mean.latency_s, 3)} s`);
      clauses.push(...partly.map((row) => `${name(row)} keeps it in ${row.reached} of ${row.of} seeds`));
      return `${clauses.join("; ")}.`;
    }
    return data.targets.length ? `No method has reached and kept a target ${data.main.label} yet.` : "";
  }

  function bandTraces(data, axis, metric, seeds) {
    const traces = [], rows = [];
    for (const { group, number } of shown(data)) {
      const look = lf.groupLook(number), name = lf.plain(group.label);
      const found = data.bands.find((band) => band.group === number && band.axis === axis && band.metric === metric);
      if (!found) continue;
      const line = { color: look.colour, width: 2.4, dash: look.dash };
      if (seeds === "each" && group.runs.length > 1) {
        group.runs.forEach((place, order) => {
          const run = data.runs[place];
          if (!run.curve || !run.curve[axis] || !run.curve[metric]) return;
          const x = lf.column(run.curve[axis]), y = lf.column(run.curve[metric]);
          traces.push({ x, y, name, legendgroup: name, showlegend: order === 0, mode: "lines", line: { ...line, width: 1.5 },
            hovertemplate: `${lf.plain(run.label)}: %{y:.4f} at %{x:.4g}<extra></extra>` });
          x.forEach((value, i) => rows.push([group.label, run.seed, value, y[i], null, null]));
        });
        continue;
      }
      const [x, mean, low, high] = ["x", "mean", "low", "high"].map((part) => lf.column(found[part]));
      if (group.runs.length > 1) {
        traces.push({ x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: lf.faded(look.colour, 0.18),
          line: { width: 0 }, hoverinfo: "skip", legendgroup: name, showlegend: false, mode: "lines" });
      }
      const few = x.length <= 40;
      traces.push({ x, y: mean, name, legendgroup: name, mode: few ? "lines+markers" : "lines", line, marker: { symbol: look.symbol, size: 6, color: look.colour },
        hovertemplate: `${name}: %{y:.4f} at %{x:.4g}<extra></extra>` });
      x.forEach((value, i) => rows.push([group.label, group.runs.length > 1 ? "mean" : data.runs[group.runs[0]].seed, value, mean[i], low[i], high[i]]));
    }
    return { traces, rows };
  }

  /** A word of caution where runs do not go equally far. */
  function lengths(data) {
    const rounds = shown(data).flatMap(({ group }) => group.runs.map((place) => data.runs[place].rounds)), least = Math.min(...rounds), most = Math.max(...rounds);
    return rounds.length && least < most ? `Runs are of ${least} to ${most} rounds: compare them where all of them go on, not by their ends.` : "";
  }

  lf.figures.push({
    id: "accuracy", section: "compare", wide: true,
    controls: (data) => [
      { key: "y", label: "Show", options: drawn(data).map(([value, { label }]) => ({ value, label })) },
      { key: "x", label: "against", options: plotted(data).map(({ axis, short }) => ({ value: axis, label: short })) },
      { key: "seeds", label: "Seeds", options: lf.data.groups.some((group) => group.runs.length > 1)
        ? [{ value: "band", label: "mean and band" }, { value: "each", label: "each" }] : [] },
    ],
    draw(data, { x, y, seeds }) {
      const { traces, rows } = bandTraces(data, x, y, seeds), metric = data.scores[y], cost = data.costs.find(({ axis }) => axis === x);
      const guesses = [...new Set(data.runs.filter((run) => !lf.state.hidden.has(run.group)).map((run) => run.final[data.main.guess]))];
      const title = `${metric.label[0].toUpperCase()}${metric.label.slice(1)} against ${cost.short}: the curve furthest ${metric.better} and to the left is best`;
      if (!traces.length) return { title, missing: lf.state.hidden.size === data.groups.length ? "All methods are hidden. Choose at least one above." : "No run has this column; see the notes on damaged or older folders at the top." };
      const floor = y === data.main.name && guesses.length && guesses[0] !== null ? (data.main.better === "up" ? Math.min : Math.max)(...guesses) : null;
      if (floor !== null) {
        const range = traces.flatMap((trace) => trace.x);
        traces.push({ x: [0, Math.max(...range)], y: [floor, floor], name: guesses.length > 1 ? `${data.main.guess_label} (${data.main.better === "up" ? "lowest" : "highest"})` : data.main.guess_label, mode: "lines",
          line: { color: lf.theme().muted, width: 1.3, dash: "dash" }, hovertemplate: `${data.main.guess_label}: %{y:.4f}<extra></extra>` });
      }
      const banded = seeds !== "each" && data.groups.some((group) => group.runs.length > 1);
      return {
        title, lead: leader(data), traces,
        layout: lf.layout(cost.title, metric.title, { xaxis: { rangemode: "tozero" }, hovermode: "closest" }),
        note: [lengths(data), banded ? "Lines are means over seeds, bands reach from the lowest to the highest seed." : ""].filter(Boolean).join(" "),
        table: { columns: ["method", "seed", cost.title, metric.title, "lowest seed", "highest seed"], rows },
      };
    },
  });

  lf.figures.push({
    id: "bits", section: "compare",
    title: "Bits on the air: how far each method stays below sending everything",
    controls: () => [{ key: "per", label: "Per", options: [{ value: "upload", label: "upload" }, { value: "run", label: "whole run" }] }],
    draw(data, { per }) {
      const groups = shown(data).map(({ group }) => ({ group, runs: group.runs.map((place) => data.runs[place]).filter((run) => !run.bits.missing) })).filter(({ runs }) => runs.length);
      if (!groups.length) return { missing: data.runs[0].bits.missing || "All methods are hidden. Choose at least one above." };
      const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
      const unit = per === "upload" ? 1e3 : 1e9, unitName = per === "upload" ? "kbit per upload" : "Gbit of all uploads";
      const rows = [], traces = Object.entries(data.counts).map(([key, label], place) => {
        const values = groups.map(({ group, runs }) => {
          const known = runs.filter((run) => run.bits[key] !== null).map((run) => run.bits[key] / (per === "upload" ? run.bits.uploads : 1) / unit);
          const value = known.length ? mean(known) : null;
          rows.push([group.label, label, value]);
          return value;
        });
        return { type: "bar", orientation: "h", name: label, y: groups.map(({ group }) => lf.wrapped(group.label)), x: values, marker: { color: lf.neutral(place) },
          text: values.map((value) => (value === null ? "" : lf.number(value, 3))), textposition: "outside", cliponaxis: false, textangle: 0,
          hovertemplate: `%{y}, ${label}: %{x:.4g} ${unitName}<extra></extra>` };
      }).filter((trace) => trace.x.some((value) => value !== null));
      const wire = rows.some((row) => row[1] === data.counts.wire && row[2] !== null);
      const most = Math.max(...rows.map((row) => row[2] ?? 0));
      return {
        lead: "Shorter bars mean less air time; dense is what a plain upload of the shared part would take.",
        traces, layout: lf.layout(unitName.replace("kbit", "kilobits").replace("Gbit", "gigabits"), "", { barmode: "group", bargap: 0.25, xaxis: { range: [0, 1.18 * most], nticks: 5, tickangle: 0 },
          yaxis: { autorange: "reversed", ticklabelstandoff: 4 }, legend: { orientation: "h", x: 0, xanchor: "left", y: 1.03, yanchor: "bottom" } }),
        note: wire ? "" : "Coded bytes were not measured: set radio.wire = true in a run's settings.",
        table: { columns: ["method", "count", unitName], rows },
      };
    },
  });

  function sorted(data) {
    const traces = [], rows = [];
    for (const { group, number } of shown(data)) {
      const look = lf.groupLook(number), name = lf.plain(group.label);
      group.runs.map((place) => data.runs[place]).filter((run) => !run.clients.missing && run.clients.score === data.main.name).forEach((run, order) => {
        const up = data.main.better === "up" ? 1 : -1, y = lf.column(run.clients.accuracy).sort((a, b) => up * (a - b)), x = y.map((_, i) => (100 * (i + 0.5)) / y.length);
        traces.push({ x, y, name, legendgroup: name, showlegend: order === 0, mode: y.length <= 40 ? "lines+markers" : "lines", line: { color: look.colour, width: 2, dash: look.dash, shape: "linear" },
          opacity: group.runs.length > 1 ? 0.8 : 1, marker: { symbol: look.symbol, size: 5, color: look.colour }, hovertemplate: `${lf.plain(run.label)}: %{y:.4f}<extra></extra>` });
        x.forEach((value, i) => rows.push([run.label, value, y[i]]));
      });
    }
    return { traces, rows };
  }

  const decileLayout = (data, least) => lf.layout("clients, from worst to best [%]", data.main.picture, {
    xaxis: { range: [0, 100] }, yaxis: data.main.name === "accuracy" ? { range: [Math.max(-0.02, Math.floor(10 * least - 0.5) / 10), 1.02] } : { rangemode: "tozero" },
    shapes: [{ type: "rect", xref: "x", yref: "paper", x0: 0, x1: 10, y0: 0, y1: 1, fillcolor: lf.faded("#D55E00", 0.13), line: { width: 0 }, layer: "below" }],
    annotations: [{ x: 10.8, y: 0.02, xref: "x", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, text: "shaded: worst decile", font: { size: 12 } }],
  });

  lf.figures.push({
    id: "clients", section: "compare",
    draw(data) {
      const title = `Is anybody left behind? Every client's ${data.main.label}, worst first`;
      const { traces, rows } = sorted(data);
      if (!traces.length) return { title, missing: data.runs.map((run) => run.clients.missing).find(Boolean) || "All methods are hidden. Choose at least one above." };
      const worst = shown(data).map(({ group }) => {
        const known = group.runs.map((place) => data.runs[place].clients.worst_decile).filter((value) => value !== undefined);
        return known.length ? `${group.label} ${(known.reduce((a, b) => a + b, 0) / known.length).toFixed(3)}` : null;
      }).filter(Boolean);
      const more = worst.length > 4 ? ` and ${worst.length - 4} more` : "";
      return {
        title, lead: `${data.main.label[0].toUpperCase()}${data.main.label.slice(1)} of the worst tenth of the clients: ${worst.slice(0, 4).join(", ")}${more}.`, traces, layout: decileLayout(data, Math.min(...rows.map((row) => row[2]))),
        note: "At each run's last evaluation; one line per run.",
        table: { columns: ["run", "clients below [%]", data.main.picture], rows },
      };
    },
  });
})(window.leanfed);
