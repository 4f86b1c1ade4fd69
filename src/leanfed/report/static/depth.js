"use strict";
// Figures of one run: where its time and energy go, who gets what, what the clients' data are like.
(function (lf) {
  const run = (data) => data.runs[lf.state.run];
  const SCALE = "Viridis";
  /** Ticks at whole numbers where there are few of them. */
  const step = (values) => (values.length <= 12 ? 1 : undefined);

  lf.figures.push({
    id: "time", section: "depth", ofRun: true,
    title: "Where the time goes: what the slowest client of each round waits for",
    controls: () => [{ key: "view", label: "Show", options: [{ value: "round", label: "each round" }, { value: "sum", label: "added up" }, { value: "share", label: "shares" }] }],
    draw(data, { view }) {
      const part = run(data).time;
      if (part.missing) return { missing: part.missing };
      const x = lf.column(part.round), names = [["computation", "computation"], ["communication", "upload"], ["downlink", "broadcast"]];
      const columns = names.map(([key]) => lf.column(part[key])), totals = columns.map((values) => values.reduce((a, b) => a + b, 0));
      const all = totals.reduce((a, b) => a + b, 0), thinned = part.of > x.length;
      const rows = x.map((round, i) => [round, lf.column(part.client)[i], ...columns.map((values) => values[i])]);
      const look = [0, 1, 2].map(lf.neutral), few = x.length <= 80 && view !== "sum";
      const traces = names.map(([, label], place) => {
        let sum = 0;
        const step = part.of / x.length; // where rounds are left out, each one shown stands for so many
        const y = columns[place].map((value, i) => {
          sum += value * step;
          const whole = columns.reduce((total, values) => total + values[i], 0);
          return view === "sum" ? sum : view === "share" ? (100 * value) / whole : value;
        });
        const common = { x, y, name: label, hovertemplate: `round %{x}, ${label}: %{y:.4g} ${view === "share" ? "%" : "s"}<extra></extra>` };
        return few ? { ...common, type: "bar", marker: { color: look[place] } }
          : { ...common, mode: "lines", stackgroup: "one", line: { width: 0, color: look[place], shape: view === "sum" ? "linear" : "hvh" }, fillcolor: lf.faded(look[place], 0.75) };
      }).filter((_, place) => totals[place] > 0);
      return {
        lead: `Of the time of all rounds, ${names.map(([, label], i) => (totals[i] > 0 ? `${label} takes ${lf.share(totals[i] / all)}` : null)).filter(Boolean).join(", ")}.`,
        traces, layout: lf.layout("round", view === "share" ? "share of the round [%]" : view === "sum" ? "simulated time so far [s]" : "simulated time of the round [s]",
          { barmode: "stack", bargap: 0.12, yaxis: { rangemode: "tozero" } }),
        note: [run(data).measured.absent ? "" : "As the model predicts it; what was measured is shown below.", thinned ? `${x.length} of ${part.of} rounds, evenly spaced.` : ""].join(" ").trim(),
        table: { columns: ["round", "slowest client", "computation [s]", "upload [s]", "broadcast [s]"], rows },
      };
    },
  });

  const RATES = {
    k: { label: "k, gradient kept", title: "keep rate k of the base gradient", bar: "keep rate k" },
    r: { label: "r, head kept", title: "keep rate r of the head", bar: "keep rate r" },
    share: { label: "l, share of band", title: "share of the bandwidth", bar: "share of the band [%]" },
  };

  /** A few entries far above all others do not take the colours away from them: the largest usual one of sorted values. */
  function outliers(values) {
    const usual = values[Math.floor(0.95 * (values.length - 1))];
    return { usual, cut: values[values.length - 1] > 3 * usual && usual > values[0] };
  }

  const brightest = (usual, rate) => `The brightest colour stands for ${lf.number(usual, 2)}${rate === "share" ? " %" : ""} and more.`;

  /** The first of k, r and l that is not the same everywhere; else k. */
  function varying({ heat }) {
    const told = (rate) => heat[rate] && lf.spread(heat[rate]) > 1e-6 * Math.max(1e-9, heat[rate].low);
    return Object.keys(RATES).find(told) || "k";
  }

  lf.figures.push({
    id: "heat", section: "depth", ofRun: true,
    controls: (data) => [{ key: "rate", label: "Show", options: Object.entries(RATES).map(([value, { label }]) => ({ value, label })), start: varying(run(data)) }],
    draw(data, { rate }) {
      const part = run(data).heat, title = `Who gets how much: ${RATES[rate].title}, by client and round`;
      if (part.missing) return { title, missing: part.missing };
      const x = lf.column(part.rounds), y = lf.column(part.clients), z = lf.matrix(part[rate]), rows = [];
      z.forEach((row, c) => row.forEach((value, i) => { if (value !== null) rows.push([y[c], x[i], value]); }));
      const values = rows.map((row) => row[2]).sort((a, b) => a - b), low = values[0], high = values[values.length - 1];
      const { usual, cut } = outliers(values);
      const taking = rows.length / (x.length * y.length), flat = high - low < 1e-6 * Math.max(1e-9, high);
      const few = [part.of_rounds > x.length ? `${x.length} of ${part.of_rounds} rounds` : "", part.of_clients > y.length ? `${y.length} of ${part.of_clients} clients` : ""].filter(Boolean);
      return {
        title,
        lead: flat ? `The same for everybody: ${lf.number(low)}${rate === "share" ? " %" : ""}.`
          : `From ${lf.number(low, 3)} to ${lf.number(high, 3)}${rate === "share" ? " %" : ""}; a client takes part in ${(100 * taking).toFixed(0)} % of the rounds on average.`,
        traces: [{ type: "heatmap", x, y, z, colorscale: SCALE, ...(cut ? { zmin: low, zmax: usual } : flat && rate !== "share" ? { zmin: 0, zmax: 1 } : {}),
          colorbar: lf.colourBar(RATES[rate].bar), hoverongaps: false, hovertemplate: `client %{y}, round %{x}: %{z:.4g}<extra></extra>` }],
        layout: lf.layout("round", "client", { plot_bgcolor: lf.isDark() ? "#39424d" : "#e3e6ea", xaxis: { showgrid: false, dtick: step(x) }, yaxis: { showgrid: false, dtick: step(y) } }),
        note: [taking < 1 ? "Grey: not taking part." : "", cut ? brightest(usual, rate) : "", few.length ? `${few.join(" and ")}, evenly spaced.` : ""].join(" ").trim(),
        table: { columns: ["client", "round", RATES[rate].title], rows },
      };
    },
  });

  /** Angles are not part of the radio model: spread so that neighbours in number are apart on the map. */
  const angle = (client) => client * 2.399963229728653;

  function cellTraces(part, snapshot, colour) {
    const clients = lf.column(part.clients), distance = lf.column(snapshot.distance);
    const values = colour === "accuracy" ? (snapshot.accuracy ? lf.column(snapshot.accuracy.values) : []) : lf.column(snapshot[colour]);
    const rates = { k: lf.column(snapshot.k), r: lf.column(snapshot.r), share: lf.column(snapshot.share) };
    const why = new Map(snapshot.excluded.map((entry) => [entry.client, entry.why])), starved = new Set(snapshot.starved);
    const points = clients.map((client, i) => ({
      client, x: distance[i] * Math.cos(angle(client)), y: distance[i] * Math.sin(angle(client)), distance: distance[i],
      value: values[i] ?? null, k: rates.k[i], r: rates.r[i], share: rates.share[i],
      fate: why.has(client) ? "excluded" : rates.k[i] === null ? "sits out" : starved.has(client) ? "starved" : "takes part", why: why.get(client) || "",
    }));
    const text = (p) => `client ${p.client}, ${p.distance.toFixed(0)} m, ${p.fate}${p.why ? `: ${lf.plain(p.why)}` : ""}` +
      (p.k === null ? "" : `<br>k ${lf.number(p.k, 3)}, r ${lf.number(p.r, 3)}, ${lf.number(p.share, 3)} % of the band`) +
      (colour === "accuracy" && p.value !== null ? `<br>accuracy ${p.value.toFixed(3)}` : "");
    return { points, text };
  }

  lf.figures.push({
    id: "cell", section: "depth", ofRun: true, square: true,
    controls(data) {
      const part = run(data).cell;
      if (part.missing) return [];
      const colours = Object.entries(RATES).map(([value, { label }]) => ({ value, label: label.split(",")[0] }));
      if (part.snapshots.some((snapshot) => snapshot.accuracy)) colours.push({ value: "accuracy", label: "accuracy" });
      const rounds = part.snapshots.map((snapshot) => ({ value: snapshot.round, label: String(snapshot.round) }));
      return [{ key: "colour", label: "Colour", options: colours, start: varying(run(data)) }, { key: "round", label: "Round", options: rounds, start: rounds[rounds.length - 1].value, range: true }];
    },
    draw(data, { colour, round }) {
      const part = run(data).cell, title = "The cell: who gets how much at which distance from the base station";
      if (part.missing) return { title, missing: part.missing };
      const snapshot = part.snapshots.find((each) => each.round === round), { points, text } = cellTraces(part, snapshot, colour);
      const theme = lf.theme(), of = (fate) => points.filter((p) => p.fate === fate);
      const valued = points.filter((p) => p.value !== null && (colour === "accuracy" || p.fate === "takes part" || p.fate === "starved"));
      const name = colour === "accuracy" ? "test accuracy" : RATES[colour].bar;
      const size = points.length > 150 ? 8 : 12, shades = valued.map((p) => p.value);
      const flat = Math.max(...shades) - Math.min(...shades) < 1e-9, most = colour === "share" ? 2 * shades[0] : 1;
      const { usual, cut } = outliers([...shades].sort((a, b) => a - b));
      const range = cut && colour !== "accuracy" ? { cmin: Math.min(...shades), cmax: usual } : colour === "accuracy" || flat ? { cmin: 0, cmax: colour === "accuracy" ? 1 : most } : {};
      const base = (list, more) => ({ x: list.map((p) => p.x), y: list.map((p) => p.y), mode: "markers", text: list.map(text), hovertemplate: "%{text}<extra></extra>", ...more });
      const traces = [
        { x: [0], y: [0], mode: "markers", name: "base station", marker: { symbol: "star", size: 15, color: theme.text }, hovertemplate: "base station<extra></extra>" },
        base(valued, { name: colour === "accuracy" ? "client" : "takes part", marker: { size, color: shades, colorscale: SCALE, showscale: true, colorbar: lf.colourBar(name), ...range,
          line: { width: 0.8, color: theme.text } } }),
        base(of("starved"), { name: "starved (k below 0.01 or at its floor)", marker: { symbol: "circle-open", size: size + 8, color: "#D55E00", line: { width: 2.2 } } }),
        base(of("excluded"), { name: "excluded", marker: { symbol: "x-thin", size: size - 1, line: { width: 2.4, color: "#CC79A7" } } }),
        base(of("sits out"), { name: "sits out", marker: { symbol: "circle-open", size: size - 4, color: theme.muted } }),
      ].filter((trace) => trace.x.length);
      const far = Math.max(part.radius_m || 0, ...points.map((p) => p.distance)) * 1.08;
      const rings = [0.25, 0.5, 0.75, 1].map((share) => share * (part.radius_m || far / 1.08));
      const counts = ["takes part", "starved", "excluded", "sits out"].map((fate) => [fate, of(fate).length]).filter(([, count]) => count);
      const verb = { "takes part": "take part", starved: "are starved", excluded: "are excluded", "sits out": "sit out" };
      return {
        title, lead: `Round ${round}: of ${points.length} devices, ${counts.map(([fate, count]) => `${count} ${verb[fate]}`).join(", ")}.`, traces,
        layout: lf.layout("metres", "metres", {
          xaxis: { range: [-far, far], zeroline: false, showgrid: false, constrain: "domain" }, yaxis: { range: [-far, far], scaleanchor: "x", zeroline: false, showgrid: false, constrain: "domain" },
          shapes: rings.map((ring) => ({ type: "circle", x0: -ring, x1: ring, y0: -ring, y1: ring, line: { color: theme.line, width: 1 }, layer: "below" })),
        }),
        note: `Distances follow from the channel gain; angles are for display only.${part.moves ? " Devices are drawn anew every round." : ""}${cut && colour !== "accuracy" ? ` ${brightest(usual, colour)}` : ""}${colour === "accuracy" && snapshot.accuracy ? ` Accuracy as of round ${snapshot.accuracy.round}.` : ""}${part.of_clients > points.length ? ` ${points.length} of ${part.of_clients} clients.` : ""}`,
        table: { columns: ["client", "distance [m]", "fate", "reason", "k", "r", "share of the band [%]", "accuracy"],
          rows: points.map((p) => [p.client, p.distance, p.fate, p.why, p.k, p.r, p.share, colour === "accuracy" ? p.value : null]) },
      };
    },
  });

  lf.figures.push({
    id: "energy", section: "depth", ofRun: true, square: true,
    controls: () => [{ key: "view", label: "Show", options: [{ value: "sum", label: "whole run" }, { value: "dearest", label: "dearest round" }] }],
    draw(data, { view }) {
      const part = run(data).energy, total_j = view === "sum" ? part.total_j : null, limited = (part.budget_j ?? total_j) !== null;
      const title = `Energy: who spends how much${limited ? " of its budget" : ""}`;
      if (part.missing) return { title: "Energy: who spends how much of its budget", missing: part.missing };
      const client = lf.column(part.client), spent = lf.column(part.spent), dearest = lf.column(part.dearest), rounds = lf.column(part.rounds);
      const values = view === "sum" ? spent : dearest, allowed = rounds.map((count) => (total_j ?? (limited ? (view === "sum" ? count : 1) * part.budget_j : null)));
      const order = client.map((_, i) => i).sort((a, b) => values[b] - values[a]), x = order.map((i) => String(client[i]));
      const within = values.filter((value, i) => !limited || value <= allowed[i] * (1 + 1e-6)).length;
      const traces = [{ type: "bar", name: "spent", x, y: order.map((i) => values[i]), marker: { color: lf.neutral(0) },
        text: order.map((i) => `client ${client[i]}, in ${rounds[i]} rounds`), textposition: "none", hovertemplate: "%{text}: %{y:.4g} J<extra></extra>" }];
      if (limited) traces.push({ name: total_j !== null ? "budget of the whole run" : view === "sum" ? "budget of the rounds it took part in" : "budget of a round", x, y: order.map((i) => allowed[i]), mode: "markers",
        marker: { symbol: "line-ew-open", size: Math.max(5, Math.min(14, 420 / x.length)), color: lf.look(1).colour, line: { width: 2.5, color: lf.look(1).colour } }, hovertemplate: "budget: %{y:.4g} J<extra></extra>" });
      const total_spent = spent.reduce((a, b) => a + b, 0), whole = allowed.reduce((a, b) => a + (b || 0), 0);
      const used = limited && view === "sum" && whole > 0 ? ` (${((100 * total_spent) / whole).toFixed(0)} % of it)` : "";
      return {
        title, lead: limited ? `${within} of ${client.length} clients stay within the budget of ${total_j !== null ? `${lf.number(total_j)} J for the whole run` : `${lf.number(part.budget_j)} J a round`}${used}.` : "No energy budget was set for this run; bars show what each client spent.",
        traces, layout: lf.layout("client, largest spender first", view === "sum" ? "energy in all [J]" : "energy of the dearest round [J]", { bargap: 0.15, xaxis: { type: "category", nticks: 16, tickangle: 0 }, yaxis: { rangemode: "tozero" } }),
        note: part.of_clients > client.length ? `${client.length} of ${part.of_clients} clients, evenly spaced.` : "",
        table: { columns: ["client", "rounds taken part in", "energy in all [J]", "dearest round [J]", "budget of a round [J]"], rows: client.map((c, i) => [c, rounds[i], spent[i], dearest[i], part.budget_j]) },
      };
    },
  });

  lf.figures.push({
    id: "labels", section: "depth", ofRun: true,
    title: "How unlike the clients' data are: labels held by each client",
    controls: () => [{ key: "view", label: "Show", options: [{ value: "share", label: "share of the client's data" }, { value: "count", label: "samples" }] }],
    draw(data, { view }) {
      const part = run(data).labels;
      if (part.missing) return { missing: part.missing };
      const counts = lf.matrix(part.counts).map((row) => row.map(Math.round)), clients = lf.column(part.clients), labels = counts[0].map((_, i) => i);
      const sums = counts.map((row) => row.reduce((a, b) => a + b, 0)), held = counts.map((row) => row.filter((value) => value > 0).length);
      const z = labels.map((label) => counts.map((row, c) => (view === "count" ? row[label] : (100 * row[label]) / (sums[c] || 1)) || null));
      const mean = held.reduce((a, b) => a + b, 0) / held.length;
      const rows = clients.flatMap((client, c) => labels.map((label) => [client, label, counts[c][label]]));
      return {
        lead: `A client holds ${lf.number(mean, 2)} of ${labels.length} labels on average, and ${lf.number(Math.min(...sums), 6)} to ${lf.number(Math.max(...sums), 6)} training samples.`,
        traces: [{ type: "heatmap", x: clients, y: labels, z, colorscale: SCALE, zmin: 0, zmax: Math.max(...z.flat()), colorbar: lf.colourBar(view === "count" ? "training samples" : "share [%]"), hoverongaps: false, xgap: clients.length <= 60 ? 1 : 0, ygap: 1,
          hovertemplate: `client %{x}, label %{y}: %{z:.4g}${view === "count" ? " samples" : " %"}<extra></extra>` }],
        layout: lf.layout("client", "label", { plot_bgcolor: lf.isDark() ? "#39424d" : "#e3e6ea", xaxis: { showgrid: false, dtick: step(clients) }, yaxis: { showgrid: false, dtick: step(labels) } }),
        note: `Grey: none of that label.${part.of_clients > clients.length ? ` ${clients.length} of ${part.of_clients} clients, evenly spaced.` : ""}`,
        table: { columns: ["client", "label", "training samples"], rows },
      };
    },
  });
})(window.leanfed);
