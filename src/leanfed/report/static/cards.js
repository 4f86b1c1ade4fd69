"use strict";
// A figure's card: its title, its choices, its plot, its downloads. Drawn when it comes into view.
(function (lf) {
  const NARROW = 640; // px

  /** The layout that all figures share. */
  lf.layout = function (x, y, more) {
    const theme = lf.theme();
    const axis = (title, extra) => ({
      title: { text: title, standoff: 8 }, gridcolor: theme.line, linecolor: theme.line, zerolinecolor: theme.line,
      automargin: true, ...extra,
    });
    const { xaxis, yaxis, ...rest } = more || {};
    return {
      font: { family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif', size: 13, color: theme.text },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 58, r: 16, t: 14, b: 50 },
      hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.text }, namelength: -1 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.03, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", maxheight: 400 },
      xaxis: axis(x, xaxis), yaxis: axis(y, yaxis),
      ...rest,
    };
  };

  /** A logarithmic axis whose every label is a whole number's worth: 1, 2, 5 within few decades, else the decades. */
  lf.logAxis = function (values) {
    const known = values.filter((value) => value !== null && value > 0), low = Math.floor(Math.log10(Math.min(...known))), high = Math.ceil(Math.log10(Math.max(...known)));
    const wide = Math.max(...known) / Math.min(...known), digits = wide > 1000 ? [1] : wide > 8 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8], ticks = [];
    for (let power = low; power <= high; power += 1) for (const digit of digits) ticks.push(Number((digit * 10 ** power).toPrecision(3)));
    return { type: "log", tickmode: "array", tickvals: ticks, ticktext: ticks.map((tick) => lf.number(tick)) };
  };

  /** The colour bar that all maps share. */
  lf.colourBar = (title) => ({ title: { text: title, side: "right" }, thickness: 12, outlinewidth: 0, len: 1, x: 1.02, xpad: 4 });

  /** The values chosen for a figure's controls; the first option where nothing was chosen or it is gone. */
  lf.chosen = function (figure, data) {
    const kept = (lf.state.choices[figure.id] ||= {}), chosen = {};
    for (const control of figure.controls ? figure.controls(data, kept) : []) {
      const values = control.options.map((option) => option.value);
      const fallback = control.start ?? values[0];
      chosen[control.key] = values.includes(kept[control.key]) ? kept[control.key] : fallback;
    }
    return chosen;
  };

  function radioControl(figure, control, value, changed) {
    const options = control.options.map((option) =>
      lf.make("label", { class: "choice" },
        lf.make("input", { type: "radio", name: `${figure.id}-${control.key}`, value: String(option.value),
          checked: option.value === value, onchange: () => changed(option.value) }),
        option.label));
    return lf.make("fieldset", { "data-control": control.key }, lf.make("legend", {}, control.label), options);
  }

  function rangeControl(figure, control, value, changed) {
    const place = control.options.findIndex((option) => option.value === value);
    const shown = lf.make("span", { class: "muted" }, control.options[place].label);
    const input = lf.make("input", { type: "range", min: "0", max: String(control.options.length - 1), "aria-label": control.label });
    input.value = String(place);
    input.addEventListener("input", () => {
      const option = control.options[Number(input.value)];
      shown.textContent = option.label;
      changed(option.value, true);
    });
    return lf.make("label", { "data-control": control.key }, `${control.label} `, input, " ", shown);
  }

  /** An empty card; `drawCard` fills it. */
  lf.makeCard = function (figure) {
    const card = lf.make("figure", { class: `card${figure.wide ? " whole" : ""}`, id: `figure-${figure.id}` },
      lf.make("h3"), lf.make("p", { class: "lead" }), lf.make("div", { class: "controls" }),
      lf.make("div", { class: `plot${figure.square ? " square" : ""}` }),
      lf.make("p", { class: "none", hidden: true }),
      lf.make("div", { class: "save" }, lf.make("span", { class: "note" }),
        lf.make("button", { type: "button", "data-save": "png", title: "Download this figure as a PNG picture", onclick: () => savePicture(figure) }, "PNG"),
        lf.make("button", { type: "button", "data-save": "csv", title: "Download what this figure shows as CSV", onclick: () => saveTable(figure, "csv") }, "CSV"),
        lf.make("button", { type: "button", "data-save": "json", title: "Download what this figure shows as JSON", onclick: () => saveTable(figure, "json") }, "JSON")));
    figure.card = card;
    figure.seen = false;
    return card;
  };

  function drawControls(figure, chosen) {
    const box = figure.card.querySelector(".controls");
    const controls = figure.controls ? figure.controls(lf.data, chosen).filter((control) => control.options.length > 1) : [];
    const now = JSON.stringify([controls, chosen]);
    if (box.dataset.shown === now) return;
    box.dataset.shown = now;
    const held = box.contains(document.activeElement) ? document.activeElement.name : ""; // a keyboard goes on from here
    box.replaceChildren(...controls.map((control) => {
      const changed = (value, sliding) => {
        lf.state.choices[figure.id][control.key] = value;
        if (sliding) box.dataset.shown = JSON.stringify([controls, { ...chosen, [control.key]: value }]);
        lf.drawCard(figure);
      };
      return (control.range ? rangeControl : radioControl)(figure, control, chosen[control.key], changed);
    }));
    if (held) box.querySelector(`input[name="${held}"]:checked`)?.focus();
  }

  /** Draw a card from the data as it is now. */
  lf.drawCard = function (figure) {
    const chosen = lf.chosen(figure, lf.data), drawn = figure.draw(lf.data, chosen), card = figure.card;
    const plot = card.querySelector(".plot"), none = card.querySelector(".none");
    card.hidden = Boolean(drawn.absent); // a figure that this run has no part in
    figure.seen = true;
    if (drawn.absent) { card.dataset.state = "absent"; Plotly.purge(plot); return; }
    card.querySelector("h3").textContent = drawn.title ?? figure.title;
    card.querySelector(".lead").textContent = drawn.lead ?? "";
    card.querySelector(".note").textContent = drawn.note ?? "";
    drawControls(figure, chosen);
    figure.drawn = drawn;
    const empty = !drawn.traces;
    plot.hidden = empty;
    none.hidden = !empty;
    card.querySelector(".controls").hidden = empty;
    none.textContent = empty ? drawn.missing : "";
    for (const button of card.querySelectorAll("[data-save]")) button.hidden = empty;
    card.dataset.state = empty ? "missing" : "drawn";
    if (empty) { Plotly.purge(plot); return; }
    const narrow = plot.clientWidth < NARROW;
    const layout = narrow ? { ...drawn.layout, font: { ...drawn.layout.font, size: 12 } } : drawn.layout;
    Plotly.react(plot, drawn.traces, layout, { responsive: true, displayModeBar: false, scrollZoom: false });
  };

  function fileName(figure) {
    const run = figure.ofRun ? `-${lf.data.runs[lf.state.run].label}` : "";
    return `leanfed-${figure.id}${run}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/-+$/, "");
  }

  /** A text in lines that fit a width. */
  function inLines(context, text, width) {
    return text.split(" ").reduce((lines, word) => {
      const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
      if (lines.length && context.measureText(longer).width <= width) lines[lines.length - 1] = longer; else lines.push(word);
      return lines;
    }, []);
  }

  /** The plot as a picture with its title above it, where no legend can run into it. */
  async function savePicture(figure) {
    const theme = lf.theme(), { traces, layout } = figure.drawn, title = figure.card.querySelector("h3").textContent;
    const run = figure.ofRun ? `: ${lf.data.runs[lf.state.run].label}` : "";
    const size = figure.square ? { width: 900, height: 760 } : { width: 1100, height: 580 }, scale = 2, line = 24 * scale, edge = 16 * scale;
    const plot = new Image();
    plot.src = await Plotly.toImage({ data: traces, layout: { ...layout, paper_bgcolor: theme.card } }, { format: "png", scale, ...size });
    await plot.decode();
    const canvas = lf.make("canvas", { width: plot.width, height: 0 }), context = canvas.getContext("2d");
    const font = `600 ${17 * scale}px ${layout.font.family}`;
    context.font = font;
    const lines = inLines(context, title + run, plot.width - 2 * edge), above = lines.length * line + edge;
    canvas.height = plot.height + above; // which clears the context
    Object.assign(context, { fillStyle: theme.card, font });
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = theme.text;
    lines.forEach((text, number) => context.fillText(text, edge, (number + 1) * line));
    context.drawImage(plot, 0, above);
    lf.save(`${fileName(figure)}.png`, "image/png", canvas.toDataURL("image/png"));
  }

  function saveTable(figure, kind) {
    const table = figure.drawn.table;
    const json = () => JSON.stringify({ figure: figure.card.querySelector("h3").textContent, ...table });
    lf.save(`${fileName(figure)}.${kind}`, kind === "csv" ? "text/csv" : "application/json", kind === "csv" ? lf.csv(table) : json());
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = lf.figures.find((each) => each.card === entry.target);
      if (entry.isIntersecting && figure && !figure.seen) lf.drawCard(figure);
    }
  }, { rootMargin: "500px" });

  /** Draw a card once it comes near the screen. */
  lf.watch = (figure) => watcher.observe(figure.card);

  /** Draw again every card that has been drawn; with `all`, the others too. */
  lf.redraw = function (all = false, only = () => true) {
    for (const figure of lf.figures) if (only(figure) && (all || figure.seen)) lf.drawCard(figure);
  };
  window.addEventListener("beforeprint", () => lf.redraw(true));
})(window.leanfed);
