"use strict";
// The planner's figures: the allocation over the cell, the rules beside it, the frontiers, and what bandwidth is worth.
(function (lf) {
  const mhz = (hz) => hz / 1e6, percent = (portion) => `${Math.round(100 * portion)} %`;
  const narrow = () => window.innerWidth < 768;
  const many = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

  function placeOf(clients) {
    const far = clients.distance_m !== null;
    return { values: far ? clients.distance_m : clients.gain_db, label: far ? "distance [m]" : "channel gain [dB]" };
  }

  const STRIP = 0.12; // how far below zero those left out stand, over the largest share
  const leftOut = (data) => (data.form === "fast" ? "sits out" : "excluded");

  /** The upper end of a rate's axis: 1, or a little above the largest where all are small. */
  const reach = ({ clients }, key) => { const most = Math.max(...clients[key], 0); return most > 0.25 ? 1 : most * 1.25 || 1; };

  /** How many devices have which rate: dots would lie on top of one another. */
  function histogram(data, key, number, theme) {
    const { clients, plan } = data, out = new Set(plan.excluded.map((entry) => entry.client)), starved = new Set(data.form === "fast" ? [] : plan.starved);
    const inside = clients.name.map((_, n) => n).filter((n) => !out.has(n)), end = reach(data, key), size = end / 20;
    const bars = (chosen, name, colour) => ({ type: "histogram", name, legendgroup: name, showlegend: false, xaxis: `x${number}`, yaxis: `y${number}`, x: chosen.map((n) => clients[key][n]),
      xbins: { start: -size / 2, end: end + size / 2, size }, marker: { color: colour, line: { width: 1, color: theme.card } }, hovertemplate: `%{y} devices ${name}, ${key} in %{x}<extra></extra>` });
    return [bars(inside.filter((n) => !starved.has(n)), "takes part", theme.accent), bars(inside.filter((n) => starved.has(n)), "starved", "#D55E00")].filter((trace) => trace.x.length);
  }

  /** Each device's share of the band over its place; those left out stand in a strip below zero. */
  function shares(data, theme) {
    const { clients, plan } = data, place = placeOf(clients).values, out = new Set(plan.excluded.map((entry) => entry.client)), starved = new Set(data.form === "fast" ? [] : plan.starved);
    const everyone = clients.name.map((_, n) => n), inside = everyone.filter((n) => !out.has(n)), pick = (chosen, values) => chosen.map((n) => values[n]);
    const low = -STRIP * 100 * Math.max(...clients.share, 1e-9);
    const words = (n) => `${lf.plain(clients.name[n])}<br>k ${clients.k[n].toFixed(3)}, r ${clients.r[n].toFixed(3)}, ${(100 * clients.share[n]).toFixed(3)} % of the band<br>${lf.number(clients.latency_s[n])} s, ${lf.number(clients.energy_j[n])} J, CPU ${clients.cpu_ghz[n].toFixed(2)} GHz<br>held by: ${clients.held_by[n]}`;
    const dots = (chosen, name, marker) => ({ type: "scatter", mode: "markers", name, legendgroup: name, x: pick(chosen, place), y: chosen.map((n) => (out.has(n) ? low : 100 * clients.share[n])),
      text: chosen.map(words), hovertemplate: "%{text}<extra></extra>", marker });
    const size = clients.name.length > 300 ? 5 : 8;
    return [
      { ...dots(inside, "takes part", { size, coloraxis: "coloraxis", color: pick(inside, clients.cpu_ghz), line: { width: 0.6, color: lf.isDark() ? theme.muted : theme.card } }), showlegend: false },
      // The legend's dot: those of the plot have their colours from the scale.
      { ...dots([], "takes part", { size, color: theme.accent }), x: [null], y: [null], hoverinfo: "skip" },
      dots(inside.filter((n) => starved.has(n)), "starved", { size: size + 6, symbol: "circle-open", color: "#D55E00", line: { width: 1.6 } }),
      dots([...out], leftOut(data), { size, symbol: "x-thin-open", color: theme.muted, line: { width: 1.6, color: theme.muted } }),
    ].filter((trace) => trace.x.length);
  }

  lf.figures.push({
    id: "allocation", section: "planner", wide: true,
    draw(data) {
      const theme = lf.theme(), { clients, plan } = data, stacked = narrow(), fast = data.form === "fast";
      const layout = lf.layout("", "", {
        coloraxis: { colorscale: "Viridis", colorbar: { ...lf.colourBar("CPU [GHz]"), ...(stacked ? { len: 0.3, y: 0.85 } : {}) } },
        margin: { l: 58, r: 76, t: 14, b: 50 }, barmode: "stack", bargap: 0.05,
      });
      const axis = layout.xaxis, upright = layout.yaxis;
      const panels = [[placeOf(clients).label, "share of the band [%]"], ["gradient sent, k", "devices"], ["head kept, r", "devices"]];
      panels.forEach(([below, beside], place) => {
        const first = [0, 0.47, 0.77][place], span = stacked ? [0, 1] : [first, first + [0.38, 0.22, 0.22][place]];
        const rows = [[0.72, 1], [0.36, 0.64], [0, 0.28]][place], name = place ? place + 1 : "";
        layout[`xaxis${name}`] = { ...axis, title: { ...axis.title, text: below }, domain: span, anchor: `y${name}`, zeroline: false, nticks: place ? 5 : 8, ...(place ? { range: [-0.03, 1.03].map((edge) => edge * reach(data, ["k", "r"][place - 1])) } : {}) };
        layout[`yaxis${name}`] = { ...upright, title: { ...upright.title, text: beside }, domain: stacked ? rows : [0, 1], anchor: `x${name}`, zeroline: !place, zerolinecolor: theme.line, rangemode: place ? "tozero" : "normal", nticks: 6 };
      });
      const taking = clients.name.length - plan.excluded.length, starved = fast ? 0 : plan.starved.length;
      const title = taking === 0 ? "Nobody can take part under these limits"
        : fast ? `${taking} of ${many(clients.name.length, "device")} take part; ${plan.excluded.length} sit out`
          : `${taking - starved} of ${many(clients.name.length, "device")} send in earnest; ${starved} starved, ${plan.excluded.length} excluded`;
      const columns = ["client", placeOf(clients).label, "CPU [GHz]", "k", "r", "share", "latency [s]", "energy [J]", "held by"];
      return {
        title, lead: fast ? "Who gets which share of the band, and how many devices send and keep how much. Everyone sends the same part of its gradient; slow devices need more of the band to end with the others."
          : "Who gets which share of the band, and how many devices send and keep how much. The best plan is all or nothing for most; rings mark those whose share is worth more elsewhere.",
        traces: [...shares(data, theme), ...histogram(data, "k", 2, theme), ...histogram(data, "r", 3, theme)],
        layout,
        table: { columns, rows: clients.name.map((name, n) => [name, placeOf(clients).values[n], clients.cpu_ghz[n], clients.k[n], clients.r[n], clients.share[n], clients.latency_s[n], clients.energy_j[n], clients.held_by[n]]) },
      };
    },
  });

  lf.figures.push({
    id: "rules", section: "planner", wide: true,
    draw(data) {
      const rows = data.rules.filter((row) => row.objective !== null);
      if (!rows.length) return { title: "Ways of planning", missing: "No way of planning lets anybody take part under these limits." };
      const fast = data.form === "fast", value = (row) => (fast ? 100 * row.worth_per_s : -row.objective), own = fast ? "fast" : "certified";
      const best = rows.find((row) => row.solver === own), fixed = rows.find((row) => row.solver === "fixed"), unit = fast ? " % a second" : "";
      const title = best && fixed ? `This form reaches ${lf.number(value(best))}${unit}, fixed rates ${lf.number(value(fixed))}${unit}` : "Ways of planning";
      const ordered = [...rows].reverse(), wrap = (text) => lf.wrapped(text, narrow() ? 18 : 40);
      const label = fast ? "fleet's gradient per second [%]" : narrow() ? "worth of the round" : "worth of the round (minus the objective)";
      return {
        title, lead: fast ? "How much of the fleet's gradient (by norm, weighted) the uploads bring for each second of the round. Longer is better."
          : "What a round is worth: the sum of the devices' weights times (θ₂ k − θ₁ √(1−r)), which is minus the objective. Longer is better.",
        traces: [{
          type: "bar", orientation: "h", y: ordered.map((row) => wrap(row.label)), x: ordered.map(value), text: ordered.map((row) => lf.number(value(row))), textposition: "outside", cliponaxis: false,
          marker: { color: ordered.map((row) => (row.solver === own ? lf.theme().accent : lf.theme().muted)) },
          hovertemplate: "%{y}: %{x:.4f}<extra></extra>",
        }],
        layout: lf.layout(label, "", { showlegend: false, bargap: 0.35, margin: { l: 58, r: 60, t: 8, b: 50 }, xaxis: narrow() ? { nticks: 4, tickangle: 0 } : {} }),
        table: { columns: ["plan", "gradient per second", "objective", "mean k", "mean r", "excluded", "starved"], rows: rows.map((row) => [row.label, row.worth_per_s, row.objective, row.mean_k, row.mean_r, row.excluded, row.starved]) },
      };
    },
  });

  const frontierLayout = (curves, all, values, factor, now, label) => lf.layout("deadline [s]", label, {
    xaxis: lf.logAxis([...curves.deadline_s, now.x]), yaxis: lf.logAxis([...all.flatMap((curve) => curve[values].map((value) => (value === null ? null : value / factor))), now.y]),
  });

  function frontier(data, curves, values, now, unit, factor) {
    const theme = lf.theme();
    const lines = curves.map((curve, number) => {
      const look = lf.look(number), solid = ["dot", "dash", "solid"][number];
      return { type: "scatter", mode: "lines", name: curve.portion === 1 ? "everyone" : percent(curve.portion), x: data.deadline_s, y: curve[values].map((value) => (value === null ? null : value / factor)),
        line: { color: look.colour, dash: solid, width: 2.4 }, hovertemplate: `%{x:.3g} s, %{y:.3g} ${unit}<extra>${percent(curve.portion)}</extra>` };
    });
    const here = now.x === null || now.y === null ? [] : [{ type: "scatter", mode: "markers", name: "now", x: [now.x], y: [now.y],
      marker: { symbol: "star", size: 15, color: "#E69F00", line: { width: 1, color: theme.text } }, hovertemplate: `these settings: %{x:.3g} s, %{y:.3g} ${unit}<extra></extra>` }];
    return [...lines.filter((line) => line.y.some((value) => value !== null)), ...here];
  }

  const frontierTable = (curves, all, values, label) => ({ columns: ["deadline [s]", ...all.map((curve) => `${label} for ${percent(curve.portion)}`)], rows: curves.deadline_s.map((tau, i) => [tau, ...all.map((curve) => curve[values][i])]) });

  /** A curve's value at the deadline nearest to the one that is set. */
  function atDeadline(curves, curve, values, deadline) {
    if (deadline === null) return curve[values].at(-1);
    let best = 0;
    curves.deadline_s.forEach((tau, i) => { if (Math.abs(Math.log(tau / deadline)) < Math.abs(Math.log(curves.deadline_s[best] / deadline))) best = i; });
    return curve[values][best];
  }

  lf.figures.push({
    id: "participation", section: "planner",
    draw(data) {
      const curves = data.curves, set = data.asked.changes;
      if (!curves) return { title: "Feasibility: who can take part", missing: "Being computed." };
      if (!curves.energy.some((curve) => curve.least_j.some((value) => value !== null))) return { title: "Feasibility: who can take part", missing: "No deadline and no energy lets that many devices take part: some cannot upload at all." };
      const now = { x: set.deadline_s, y: set.energy_budget_j };
      const all = atDeadline(curves, curves.energy[2], "least_j", set.deadline_s), within = set.deadline_s === null ? "Without a deadline" : `Within ${lf.number(set.deadline_s)} s`;
      const title = all === null ? `${within} not every device can take part, whatever it may spend` : `${within} every device can take part from ${lf.number(all, 3)} J`;
      return {
        title, lead: "Feasibility frontier: the least energy budget with which so many devices finish their mandatory work by the deadline. Below and left of a line that share of them cannot.",
        traces: frontier(curves, curves.energy, "least_j", now, "J", 1),
        layout: frontierLayout(curves, curves.energy, "least_j", 1, now, "energy budget of a device [J]"),
        table: frontierTable(curves, curves.energy, "least_j", "least energy [J]"),
      };
    },
  });

  lf.figures.push({
    id: "bandwidth", section: "planner",
    draw(data) {
      const curves = data.curves, set = data.asked.changes, k = data.asked.aim.k;
      const name = `Feasibility: who can send k = ${k}`;
      if (!curves) return { title: name, missing: "Being computed." };
      if (!curves.bandwidth.some((curve) => curve.least_hz.some((value) => value !== null && value > 0))) return { title: name, missing: "No bandwidth lets that many devices send so much under this energy budget. Lower k under “Fixed rates to compare with”, or raise the energy." };
      const now = { x: set.deadline_s, y: mhz(set.bandwidth_hz) };
      const all = atDeadline(curves, curves.bandwidth[2], "least_hz", set.deadline_s), within = set.deadline_s === null ? "Without a deadline" : `Within ${lf.number(set.deadline_s)} s`;
      const title = all === null ? `${within} and this energy, not every device can send k = ${k} on any band` : `${within} everybody sends at least k = ${k} from ${lf.number(mhz(all), 3)} MHz on`;
      return {
        title, lead: "Feasibility frontier: the least bandwidth on which so many devices can all send that k in time and within the energy budget, heads at their floor. Below and left of a line it is impossible.",
        traces: frontier(curves, curves.bandwidth, "least_hz", now, "MHz", 1e6),
        layout: frontierLayout(curves, curves.bandwidth, "least_hz", 1e6, now, "bandwidth of the uplink [MHz]"),
        table: frontierTable(curves, curves.bandwidth, "least_hz", "least bandwidth [Hz]"),
      };
    },
  });

  /** What the fast form makes of narrower and wider bands. */
  function perSecond(curves, band) {
    const bands = curves.worth.bandwidth_hz.map(mhz), values = curves.worth.per_s.map((value) => 100 * value), middle = Math.floor(bands.length / 2), theme = lf.theme();
    return {
      title: `A band four times as wide brings ${lf.number(values.at(-1) / values[middle], 3)} times as much learning per second`, lead: "The fast plan's learning per second on narrower and wider bands: where the line is flat, processors are what is short.",
      traces: [
        { type: "scatter", mode: "lines+markers", name: "fast plan", x: bands, y: values, line: { color: theme.accent, width: 2.4 }, marker: { size: 6 }, hovertemplate: "%{x:.3g} MHz: %{y:.4g} % a second<extra></extra>" },
        { type: "scatter", mode: "markers", name: "now", x: [band], y: [values[middle]], marker: { symbol: "star", size: 15, color: "#E69F00", line: { width: 1, color: theme.text } }, hovertemplate: "these settings: %{x:.3g} MHz, %{y:.4g} % a second<extra></extra>" },
      ],
      layout: lf.layout("bandwidth of the uplink [MHz]", "fleet's gradient per second [%]", { xaxis: { rangemode: "tozero" }, yaxis: { rangemode: "tozero" } }),
      table: { columns: ["bandwidth [Hz]", "gradient per second"], rows: curves.worth.bandwidth_hz.map((hz, i) => [hz, curves.worth.per_s[i]]) },
    };
  }

  lf.figures.push({
    id: "worth", section: "planner", wide: true,
    draw(data) {
      const curves = data.curves, price = data.price_per_mhz, band = mhz(data.asked.changes.bandwidth_hz), value = data.plan.objective;
      if (!curves || value === null) return { title: "What bandwidth is worth", missing: value === null ? "Nobody can take part, so bandwidth is worth nothing." : "Being computed." };
      if (data.form === "fast") return perSecond(curves, band);
      const title = price > 0 ? `One more MHz takes ${lf.number(price, 3)} off the objective: that is its shadow price` : "More bandwidth would change nothing: its shadow price is 0";
      const bands = curves.worth.bandwidth_hz.map(mhz), look = lf.look(0);
      const reach = [0.4, 1.6].map((factor) => factor * band);
      return {
        title, lead: "The best plan's objective on narrower and wider bands (lower is better). The dashed line has the slope of the shadow price at the band that is set.",
        traces: [
          { type: "scatter", mode: "lines+markers", name: "best objective", x: bands, y: curves.worth.objective, line: { color: look.colour, width: 2.4 }, marker: { size: 6 }, hovertemplate: "%{x:.3g} MHz: %{y:.4f}<extra></extra>" },
          { type: "scatter", mode: "lines", name: "slope of the shadow price", x: reach, y: reach.map((at) => value - price * (at - band)), line: { color: "#D55E00", dash: "dash", width: 2 }, hoverinfo: "skip" },
          { type: "scatter", mode: "markers", name: "now", x: [band], y: [value], marker: { symbol: "star", size: 15, color: "#E69F00", line: { width: 1, color: lf.theme().text } }, hovertemplate: "these settings: %{x:.3g} MHz, %{y:.4f}<extra></extra>" },
        ],
        layout: lf.layout("bandwidth of the uplink [MHz]", "objective of the best plan", { xaxis: { rangemode: "tozero" } }),
        table: { columns: ["bandwidth [Hz]", "objective", "price per MHz"], rows: curves.worth.bandwidth_hz.map((hz, i) => [hz, curves.worth.objective[i], curves.worth.price_per_mhz[i]]) },
      };
    },
  });
})(window.leanfed);
