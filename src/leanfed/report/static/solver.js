"use strict";
// How the plans of one run were made: gaps, steps, deadlines, alternatives, and what planning cost.
(function (lf) {
  const run = (data) => data.runs[lf.state.run];
  const VIEWS = [
    { value: "gap", label: "gap", needs: (part) => part.relative_gap, column: "relative_gap", title: "Plans close to the best: how far each round's plan can be from it", y: "relative gap to the certified bound", log: true },
    { value: "trace", label: "steps", needs: (part) => part.traces.some((trace) => trace.objective.length), title: "Algorithm 2 step by step: the objective falls until it settles" },
    { value: "deadline", label: "deadline", needs: (part) => part.deadline_s, column: "deadline_s", title: "The deadline that each round chose", y: "deadline of the round [s]", unit: " s" },
    { value: "options", label: "alternatives", needs: (part) => part.traces.some((trace) => trace.alternatives.length), title: "Why this keep rate: the progress per second of every plan tried" },
    { value: "taking", label: "participants", needs: (part) => part.round, column: "participants", title: "How many clients each plan lets in", y: "clients that take part" },
    { value: "price", label: "price", needs: (part) => part.price, column: "price", title: "What more bandwidth is worth: the price of the band in each round", y: "objective gained per unit share" },
    { value: "cost", label: "planning time", needs: (part) => part.seconds, column: "seconds", title: "Planning costs little: wall-clock time of each plan", y: "time to plan [ms]", unit: " ms", factor: 1000, log: true },
  ];
  const SOLVERS = { fast: "for the most progress per second", pace: "for the most progress per second", certified: "with the certified price solver", dca: "with Algorithm 2 (DCA)", fastest: "for the fastest split" };

  function overRounds(part, view) {
    const x = lf.column(part.round), y = lf.column(part[view.column]).map((value) => (value === null ? null : value * (view.factor || 1)));
    const zero = view.log && y.some((value) => value !== null && value <= 0), shown = zero ? y.map((value) => (value === null ? null : Math.max(value, 1e-16))) : y;
    const traces = [{ x, y: shown, name: view.y, mode: x.length <= 80 ? "lines+markers" : "lines", line: { color: lf.look(0).colour, width: 2 }, marker: { size: 6 }, hovertemplate: `round %{x}: %{y:.4g}<extra></extra>` }];
    if (view.value === "deadline" && part.deadline_most_s !== null) traces.push({ x: [x[0], x[x.length - 1]], y: [part.deadline_most_s, part.deadline_most_s], name: "the most that is allowed", mode: "lines", line: { color: lf.look(1).colour, dash: "dash", width: 1.6 } });
    const known = y.filter((value) => value !== null), log = view.log && Math.max(...known) > 0;
    return {
      lead: `Between ${lf.number(Math.min(...known), 3)} and ${lf.number(Math.max(...known), 3)}${view.unit || ""}; planned ${SOLVERS[part.solver] || `with ${part.solver}`}.${part.words ? ` In the last round ${part.words}.` : ""}`,
      traces, layout: lf.layout("round", view.y, { yaxis: log ? { type: "log", exponentformat: "power", dtick: 1 } : { rangemode: "tozero" }, showlegend: traces.length > 1 }),
      note: [zero ? "Gaps of exactly zero are drawn at 1e-16." : "", part.of > x.length ? `${x.length} of ${part.of} rounds, evenly spaced.` : ""].join(" ").trim(),
      table: { columns: ["round", view.y], rows: x.map((round, i) => [round, y[i]]) },
    };
  }

  function steps(part, trace) {
    const y = trace.objective, x = y.map((_, i) => i + 1), last = y.length - 1;
    return {
      lead: `Round ${trace.round}: ${y.length} ${y.length === 1 ? "step" : "steps"}, the last one changes the objective by ${last > 0 ? lf.number(Math.abs(y[last] - y[last - 1]), 2) : "nothing to compare"}.`,
      traces: [{ x, y, mode: "lines+markers", name: "objective", line: { color: lf.look(0).colour, width: 2 }, marker: { size: 7 }, hovertemplate: "step %{x}: %{y:.6g}<extra></extra>" }],
      layout: lf.layout("step of Algorithm 2", "objective, Eq. (27a)", { xaxis: { dtick: x.length <= 20 ? 1 : undefined } }),
      table: { columns: ["round", "step", "objective", "change of the point"], rows: x.map((step, i) => [trace.round, step, y[i], trace.residual[i]]) },
    };
  }

  function options(part, trace) {
    const all = trace.alternatives, best = trace.chosen, size = (plan) => 8 + 3 * Math.sqrt(plan.participants);
    const text = (plan) => `k ${lf.number(plan.k, 3)}, deadline ${lf.number(plan.deadline_s, 3)} s, ${plan.participants} clients`;
    const mark = (list, name, colour, symbol) => ({ x: list.map((p) => p.k), y: list.map((p) => p.worth_per_s), text: list.map(text), name, mode: "markers",
      marker: { size: list.map(size), color: colour, symbol, line: { width: 1, color: lf.theme().card } }, hovertemplate: "%{text}: %{y:.4g} per second<extra></extra>" });
    return {
      lead: `Round ${trace.round}: k = ${lf.number(best.k, 3)} with ${best.participants} clients within ${lf.number(best.deadline_s, 3)} s promises the most.`,
      traces: [mark(all, "tried", lf.look(0).colour, "circle"), mark([best], "chosen", lf.look(1).colour, "star")],
      layout: lf.layout("keep rate k", "progress per second", { xaxis: { rangemode: "tozero" }, yaxis: { rangemode: "tozero" } }),
      note: "Larger marks let more clients in; the lowest one of the largest k lets everybody in.",
      table: { columns: ["round", "keep rate k", "deadline [s]", "clients", "progress per second", "chosen"], rows: [...all.map((p) => [trace.round, p.k, p.deadline_s, p.participants, p.worth_per_s, "no"]), [trace.round, best.k, best.deadline_s, best.participants, best.worth_per_s, "yes"]] },
    };
  }

  const tracesOf = (part, view) => part.traces.filter((trace) => (view === "trace" ? trace.objective : trace.alternatives).length);

  lf.figures.push({
    id: "solver", section: "depth", ofRun: true,
    controls(data, kept) {
      const part = run(data).solver;
      if (part.missing || part.nothing) return [];
      const views = VIEWS.filter((view) => view.needs(part)), view = views.some((each) => each.value === kept.view) ? kept.view : views[0].value;
      const controls = [{ key: "view", label: "Show", options: views.map(({ value, label }) => ({ value, label })) }];
      if (view === "trace" || view === "options") {
        const rounds = tracesOf(part, view).map((trace) => ({ value: trace.round, label: String(trace.round) }));
        controls.push({ key: "round", label: "Round", options: rounds, start: rounds[rounds.length - 1].value, range: true });
      }
      return controls;
    },
    draw(data, { view, round }) {
      const part = run(data).solver, title = "How the plans of the rounds were made";
      if (part.missing || part.nothing) return { title, missing: part.missing || part.nothing };
      const chosen = VIEWS.find((each) => each.value === view);
      if (view !== "trace" && view !== "options") return { title: chosen.title, ...overRounds(part, chosen) };
      const traces = tracesOf(part, view), trace = traces.find((each) => each.round === round) || traces[traces.length - 1];
      return { title: chosen.title, ...(view === "trace" ? steps : options)(part, trace) };
    },
  });
})(window.leanfed);
