"use strict";
// The planner's sliders: each a range and a number for the same value, the unit in its label.
(function (lf) {
  const { make } = lf, STEPS = 1000;
  // key, label, unit, lowest, highest, scale: log or linear; `factor` turns what is shown into SI.
  const SLIDERS = [
    ["Devices", [
      { key: "clients", label: "Number of devices", low: 1, high: 1000, log: true, whole: true },
      { key: "radius_m", label: "Radius of the cell [m]", low: 10, high: 2000, log: true },
      { key: "seed", label: "Draw number (seed)", low: 0, high: 100, whole: true },
    ]],
    ["Limits", [
      { key: "bandwidth_hz", label: "Bandwidth of the uplink [MHz]", low: 0.1, high: 200, log: true, factor: 1e6 },
      { key: "deadline_s", label: "Deadline of the round [s]", low: 0.01, high: 1000, log: true, optional: true },
      { key: "energy_budget_j", label: "Energy budget of a device [J]", low: 0.001, high: 1000, log: true, optional: true },
    ]],
    ["Model", [
      { key: "base_size", label: "Shared base, d_B [weights]", low: 100, high: 1e8, log: true, whole: true },
      { key: "head_size", label: "Private head, d_P [weights]", low: 1, high: 1e8, log: true, whole: true },
      { key: "cycles_per_sample", label: "Work per sample [million cycles]", low: 0.01, high: 10000, log: true, factor: 1e6 },
    ]],
    ["What counts", [
      { key: "theta1", label: "Cost of pruning, θ₁", low: 0.001, high: 10, log: true },
      { key: "theta2", label: "Worth of sending, θ₂", low: 0.001, high: 10, log: true },
      { key: "k_min", label: "Floor of k for everyone", low: 0, high: 1 },
      { key: "k_max", label: "Ceiling of k for everyone", low: 0, high: 1 },
      { key: "r_min", label: "Floor of r for everyone", low: 0, high: 1 },
    ]],
    ["Fixed rates to compare with", [
      { key: "aim_k", label: "k for everyone", low: 0, high: 1 },
      { key: "aim_r", label: "r for everyone", low: 0, high: 1 },
    ]],
  ];
  const NOT_CHANGES = ["clients", "radius_m", "seed", "aim_k", "aim_r"];
  const controls = {};
  let fleet = null; // { name, text } of a file
  let changed = () => {};

  const tidy = (control, value) => (control.whole ? Math.round(value) : Number(value.toPrecision(3)));
  const toStep = (control, value) => {
    const inside = Math.min(Math.max(value, control.low), control.high);
    const share = control.log ? Math.log(inside / control.low) / Math.log(control.high / control.low) : (inside - control.low) / (control.high - control.low);
    return Math.round(STEPS * share);
  };
  const fromStep = (control, step) => {
    const share = step / STEPS;
    return tidy(control, control.log ? control.low * (control.high / control.low) ** share : control.low + share * (control.high - control.low));
  };

  function slider(control) {
    const id = `slider-${control.key}`;
    control.range = make("input", { type: "range", id, min: "0", max: String(STEPS), step: "1" });
    control.number = make("input", { type: "number", id: `${id}-number`, min: String(control.low), step: "any", "aria-label": control.label });
    control.range.addEventListener("input", () => { put(control, fromStep(control, Number(control.range.value)), control.range); changed(); });
    control.number.addEventListener("input", () => { if (control.number.value !== "") { put(control, Number(control.number.value), control.number); changed(); } });
    control.box = make("div", { class: "slider" }, make("label", { htmlFor: id }, control.label), control.range, control.number);
    controls[control.key] = control;
    if (!control.optional) return control.box;
    control.unlimited = make("input", { type: "checkbox", id: `${id}-unlimited`, onchange: () => { dim(control); changed(); } });
    return make("div", {}, control.box, make("div", { class: "row" }, control.unlimited, make("label", { htmlFor: `${id}-unlimited` }, "no limit")));
  }

  function dim(control) {
    const off = Boolean(control.unlimited?.checked) || Boolean(control.locked);
    control.box.classList.toggle("off", off);
    control.range.disabled = control.number.disabled = off;
  }

  /** Show a value in both inputs, except in the one that it was typed into. */
  function put(control, value, from) {
    control.value = value;
    if (from !== control.range) control.range.value = String(toStep(control, value));
    if (from !== control.number) control.number.value = String(value);
    control.range.setAttribute("aria-valuetext", String(value));
  }

  /** Set a slider to a value in SI units; null is no limit. */
  lf.setSlider = function (key, value) {
    const control = controls[key];
    if (control.unlimited) control.unlimited.checked = value === null;
    if (value !== null) put(control, Number((value / (control.factor ?? 1)).toPrecision(12)));
    dim(control);
  };

  const si = (control) => (control.unlimited?.checked ? null : Number((control.value * (control.factor ?? 1)).toPrecision(12)));

  function usePreset(presets, model) {
    const { shared, models } = presets;
    for (const [key, value] of Object.entries({ ...shared, ...presets.forms[lf.at("form").value], ...models[model] })) if (controls[key]) lf.setSlider(key, value);
  }

  /** Say which fleet is planned for; `devices` is how many the file holds. */
  lf.useFleet = function (file, devices) {
    fleet = file;
    lf.at("fleet-name").textContent = file ? `${file.name}: ${devices} devices` : "The paper's cell, drawn at random";
    lf.at("drawn").hidden = !file;
    for (const key of ["radius_m", "seed"]) { controls[key].locked = Boolean(file); dim(controls[key]); }
    controls.clients.high = file ? Math.max(devices, 2) : 1000;
    put(controls.clients, file ? devices : 100);
  };

  /** What the page asks the server, as the sliders stand. */
  lf.question = function () {
    const changes = {};
    for (const [key, control] of Object.entries(controls)) if (!NOT_CHANGES.includes(key)) changes[key] = si(control);
    const drawn = fleet ? {} : { radius_m: si(controls.radius_m), seed: controls.seed.value };
    return { form: lf.at("form").value, model: lf.at("model").value, payload: lf.at("payload").value, clients: controls.clients.value, ...drawn, fleet, changes,
      aim: { k: controls.aim_k.value, r: controls.aim_r.value } };
  };

  /** Build the sliders; `onFile` gets the chosen CSV file, `onChange` is told of every change. */
  lf.buildSliders = function (presets, onChange, onFile) {
    const choice = (id, label, options) => make("div", { class: "slider" }, make("label", { htmlFor: id }, label),
      make("select", { id, style: "grid-column: 1 / -1" }, options.map(([value, text]) => make("option", { value }, text))));
    const file = make("input", { type: "file", id: "fleet", accept: ".csv,text/csv", onchange: () => { if (file.files.length) onFile(file.files[0]); file.value = ""; } });
    const groups = SLIDERS.map(([title, list]) => make("fieldset", { id: `group-${title.split(" ")[0].toLowerCase()}` }, make("legend", {}, title), list.map(slider)));
    groups[0].append(make("div", { class: "slider" }, make("label", { htmlFor: "fleet" }, "Measured devices instead (fleet as CSV)"), make("div", { style: "grid-column: 1 / -1" }, file)),
      make("p", { class: "muted", id: "fleet-name", style: "margin: 0.3rem 0; font-size: 0.85rem; overflow-wrap: anywhere" }),
      make("button", { type: "button", id: "drawn", hidden: true, onclick: () => { lf.useFleet(null); lf.setSlider("bandwidth_hz", presets.shared.bandwidth_hz); lf.trouble(""); onChange(); } }, "Back to the drawn cell"));
    const forms = make("fieldset", { id: "group-form" }, make("legend", {}, "Aim"), choice("form", "Form of the plan", [["fast", "fast: most learning per second"], ["safe", "safe: the paper's trade-off, heads kept"], ["plain", "plain: exactly the paper's"]]));
    groups[2].querySelector("legend").after(choice("model", "Sizes and limits as for", [["lenet5", "LeNet-5"], ["resnet18", "ResNet-18"]]));
    groups[3].append(choice("payload", "Bits of an upload", [["exact", "exact count"], ["paper", "the paper's count"]]));
    lf.at("sliders").append(forms, ...groups);
    lf.at("sliders").addEventListener("submit", (event) => event.preventDefault());
    lf.at("model").addEventListener("change", () => { usePreset(presets, lf.at("model").value); onChange(); });
    lf.at("payload").addEventListener("change", () => onChange());
    lf.at("form").addEventListener("change", () => { for (const [key, value] of Object.entries(presets.forms[lf.at("form").value])) lf.setSlider(key, value); onChange(); });
    usePreset(presets, "lenet5");
    lf.useFleet(null);
    changed = onChange;
  };
})(window.leanfed);
