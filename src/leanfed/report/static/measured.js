"use strict";
// A run on a real fleet: what the model predicted beside what was measured. A simulated run has no such figure.
(function (lf) {
  const run = (data) => data.runs[lf.state.run];
  const STAGES = [["ready", "getting ready"], ["train", "training"], ["test", "testing"], ["upload", "upload"], ["rest", "starting, queueing, waiting"]];
  const median = (values) => {
    const known = values.filter((value) => value !== null).sort((a, b) => a - b), middle = Math.floor(known.length / 2);
    return known.length ? (known[middle] + known[known.length - 1 - middle]) / 2 : null;
  };
  const times = (ratio) => `${lf.number(ratio, 2)} times`;

  function lines(x, columns, unit) {
    return columns.map(([name, y], place) => {
      const look = lf.look(place);
      return { x, y, name, mode: x.length <= 80 ? "lines+markers" : "lines", line: { color: look.colour, width: 2.2, dash: ["dash", "solid", "dot"][place] }, marker: { symbol: look.symbol, size: 7, color: look.colour },
        hovertemplate: `round %{x}, ${name}: %{y:.4g} ${unit}<extra></extra>` };
    });
  }

  /** Logarithmic where the smallest line would lie on the floor. */
  function upright(values) {
    const known = values.filter((value) => value !== null && value > 0);
    return known.length && Math.max(...known) > 8 * Math.min(...known) ? lf.logAxis(known) : { rangemode: "tozero" };
  }

  /** How far predictions were off, where the run recorded it. */
  function wrong(error) {
    const told = [["rounds", "a round"], ["clients", "a client"]].filter(([table]) => error && error[table] !== null).map(([table, what]) => `${lf.percent(error[table], 0)} for ${what}`);
    return told.length ? ` Half of the predictions were off by less than ${told.join(" and ")}.` : "";
  }

  function seconds(part, x) {
    const predicted = lf.column(part.predicted_s), measured = lf.column(part.measured_s), ratio = median(measured) / median(predicted);
    return {
      title: "Prediction and reality: how long a round takes on the real fleet",
      lead: `The model predicts ${lf.number(median(predicted), 3)} s a round, clocks say ${lf.number(median(measured), 3)} s: ${times(ratio)} that (medians).${wrong(part.error)}`,
      traces: lines(x, [["predicted", predicted], ["measured", measured]], "s"), layout: lf.layout("round", "time of the round [s]", { yaxis: upright([...predicted, ...measured]) }),
      note: "Measured from sending the orders to the last answer.",
      table: { columns: ["round", "predicted [s]", "measured [s]"], rows: x.map((round, i) => [round, predicted[i], measured[i]]) },
    };
  }

  function bytes(part, x) {
    const [predicted, coded, sent] = ["predicted_kb", "coded_kb", "sent_kb"].map((name) => lf.column(part[name]));
    const more = 100 * (median(sent) / median(predicted) - 1);
    return {
      title: "Prediction and reality: what the uploads of a round weigh",
      lead: `${lf.number(median(predicted))} kB predicted, ${lf.number(median(coded))} kB coded, ${lf.number(median(sent))} kB as sent: ${lf.number(Math.abs(more), 2)} % ${more < 0 ? "less" : "more"} than predicted (medians).`,
      traces: lines(x, [["predicted", predicted], ["coded updates", coded], ["whole answers as sent", sent]], "kB"), layout: lf.layout("round", "uploads of all participants [kB]", { yaxis: { rangemode: "tozero" } }),
      table: { columns: ["round", "predicted [kB]", "coded [kB]", "as sent [kB]"], rows: x.map((round, i) => [round, predicted[i], coded[i], sent[i]]) },
    };
  }

  function stages(part, x) {
    const columns = STAGES.map(([key]) => lf.column(part.stages[key])), sums = columns.map((values) => values.reduce((a, b) => a + b, 0)), all = sums.reduce((a, b) => a + b, 0);
    const [largest] = STAGES.map(([, label], i) => ({ label, share: sums[i] / all })).sort((a, b) => b.share - a.share);
    return {
      title: "Where the real time goes: a participant between its order and its answer",
      lead: `${largest.label[0].toUpperCase()}${largest.label.slice(1)} takes the most: ${lf.percent(largest.share, 0)}; training takes ${lf.percent(sums[1] / all, 0)}.`,
      traces: STAGES.map(([, label], i) => ({ type: "bar", x, y: columns[i], name: label, marker: { color: lf.neutral(i) }, hovertemplate: `round %{x}, ${label}: %{y:.3g} s<extra></extra>` })),
      layout: lf.layout("round", "mean time of a participant [s]", { barmode: "stack", bargap: 0.15, yaxis: { rangemode: "tozero" } }),
      table: { columns: ["round", ...STAGES.map(([, label]) => `${label} [s]`)], rows: x.map((round, i) => [round, ...columns.map((values) => values[i])]) },
    };
  }

  lf.figures.push({
    id: "measured", section: "depth", ofRun: true, wide: true,
    controls: (data) => (run(data).measured.round ? [{ key: "view", label: "Show", options: [{ value: "seconds", label: "seconds" }, { value: "bytes", label: "bytes" }, { value: "stages", label: "where the time goes" }] }] : []),
    draw(data, { view }) {
      const part = run(data).measured;
      if (part.absent) return { absent: true };
      if (part.missing) return { title: "Prediction and reality", missing: part.missing };
      const x = lf.column(part.round), drawn = { seconds, bytes, stages }[view](part, x);
      const unheard = Object.entries(part.unheard).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`);
      const few = part.of > x.length ? `${x.length} of ${part.of} rounds, evenly spaced.` : "";
      drawn.layout.xaxis = { ...drawn.layout.xaxis, ...(x.length <= 20 ? { dtick: 1 } : {}) };
      return { ...drawn, note: [drawn.note || "", unheard.length ? `Answers not counted: ${unheard.join(", ")}.` : "", few].filter(Boolean).join(" ") };
    },
  });
})(window.leanfed);
