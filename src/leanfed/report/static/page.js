"use strict";
// The page as a whole: build it once, show data in it, and show newer data when a live page hands it over.
(function (lf) {
  const { make } = lf, at = (id) => document.getElementById(id);
  const FLAWS = 4; // told outside the fold

  function buildSections() {
    at("compare").replaceChildren(make("h2", {}, "Comparison"), make("div", { id: "filter", class: "chips", role: "group", "aria-label": "Methods shown" }), make("div", { class: "cards", id: "compare-cards" }));
    at("depth").replaceChildren(make("h2", {}, "One run in depth"), make("div", { class: "pick" }, make("label", {}, "Run ", make("select", { id: "run" }))), make("div", { class: "cards", id: "depth-cards" }));
    for (const figure of lf.figures) at(`${figure.section}-cards`).append(lf.makeCard(figure));
    at("figure-accuracy").after(make("div", { id: "targets", class: "whole cards", style: "grid-column: 1 / -1; margin: 0" }));
    at("run").addEventListener("change", () => lf.chooseRun(Number(at("run").value)));
    lf.figures.forEach(lf.watch);
  }

  /** Show one run in the figures of a run, the settings and the commands. */
  lf.chooseRun = function (place) {
    lf.state.run = place;
    lf.redraw(false, (figure) => figure.ofRun);
    showSettings();
    showCommands();
  };

  function showTop(data) {
    at("title").textContent = data.title;
    const sets = [...new Set(data.groups.map((group) => [group.dataset, group.partition].filter(Boolean).join(", ")))];
    const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    at("subtitle").textContent = `${count(data.groups.length, "method")}, ${count(data.runs.length, "run")} on ${sets.slice(0, 3).join("; ")}${sets.length > 3 ? " and others" : ""}. Made ${data.made} with leanfed ${data.version}.`;
    at("foot").textContent = "Every figure can be saved as PNG, and what it shows as CSV or JSON. This file holds everything it shows and fetches nothing.";
    const flaws = at("flaws");
    flaws.hidden = !data.flaws.length;
    flaws.className = "flaw";
    const list = (some) => make("ul", {}, some.map((flaw) => make("li", {}, make("strong", {}, flaw.file), flaw.field ? `, ${flaw.field}` : "", `: ${flaw.message}`)));
    const rest = data.flaws.slice(FLAWS), opened = Boolean(flaws.querySelector("details[open]"));
    flaws.replaceChildren(make("h2", {}, "Damaged or older run folders: these files and fields are missing below"), list(data.flaws.slice(0, FLAWS)),
      rest.length ? make("details", { open: opened }, make("summary", {}, `${rest.length} more`), list(rest)) : "");
  }

  function showFilter(data) {
    const chip = (group, number) => make("label", { class: "chip" },
      make("input", { type: "checkbox", checked: !lf.state.hidden.has(number), onchange: (event) => {
        if (event.target.checked) lf.state.hidden.delete(number); else lf.state.hidden.add(number);
        lf.redraw(false, (figure) => !figure.ofRun);
        showTargets(data);
      } }),
      make("span", { class: "swatch", style: `background: ${lf.groupLook(number).colour}` }), group.label);
    at("filter").replaceChildren(...(data.groups.length > 1 ? data.groups.map(chip) : []));
  }

  function showTargets(data) {
    at("targets").replaceChildren(...data.targets.map((target) => lf.targetTable(data, target)));
  }

  function showSettings() {
    at("settings").replaceChildren(make("h2", {}, "Settings"),
      make("p", { class: "muted" }, `Of ${lf.data.runs[lf.state.run].label}. Sources: ${Object.entries(lf.data.sources).map(([name, text]) => `${name}: ${text}`).join("; ")}.`), ...lf.cutsTable(lf.data), lf.settingsTable(lf.data));
  }

  function showCommands() {
    const run = lf.data.runs[lf.state.run], command = run.command;
    at("again").replaceChildren(make("h2", {}, "Reproduce"), make("p", { class: "muted" }, `How ${run.label} was made, and how to make it again.`),
      make("p", {}, "The command that was given:"), make("pre", { id: "command" }, command || "not recorded: an older leanfed did not write it"),
      make("p", {}, "The same run again from the settings in its folder, to the last bit on the same versions:"), make("pre", {}, run.again),
      make("p", {}, "Where it ran:"), lf.table("environment", [{ label: "what" }, { label: "version" }], run.environment));
  }

  /** Show data; what the reader has chosen stays. */
  lf.show = function (data) {
    lf.data = data;
    if (lf.state.run === null || lf.state.run >= data.runs.length) {
      lf.state.run = Math.max(0, data.runs.findIndex((run) => run.solver.round)); // a planned run has most to show
    }
    if (!at("compare-cards")) buildSections();
    showTop(data);
    at("summary").replaceChildren(make("h2", {}, "Summary"), make("div", { class: "card whole" }, lf.summaryTable(data)));
    showFilter(data);
    showTargets(data);
    at("run").replaceChildren(...data.runs.map((run, place) => make("option", { value: String(place), selected: place === lf.state.run }, run.label)));
    showSettings();
    showCommands();
    lf.redraw();
  };

  const THEMES = ["auto", "light", "dark"];
  function setTheme(name) {
    if (name === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
    at("theme").textContent = `Theme: ${name}`;
    if (lf.data) { lf.redraw(); showFilter(lf.data); }
  }
  let theme = "auto";
  at("theme").addEventListener("click", () => { theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]; setTheme(theme); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (theme === "auto") setTheme("auto"); });

  const first = JSON.parse(at("data").textContent);
  if (first) lf.show(first); // a live page of a run without a round has nothing to show yet
})(window.leanfed);
