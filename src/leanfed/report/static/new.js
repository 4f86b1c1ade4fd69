"use strict";
// The form that starts a run: fields from the schema of the settings, refusals beside them.
(function (lf) {
  const { make, at } = lf, fields = JSON.parse(at("fields").textContent), form = at("settings"), boxes = {};
  const LABELS = { name: "Name of the run", "algorithm.name": "Method", "task.dataset": "Data set", "task.partition.kind": "Partition", "task.partition.clients": "Clients",
    rounds: "Rounds", seed: "Seed", "allocation.rule": "Who decides k, r and bandwidth", "allocation.form": "Form of the plan (with joint)" };
  const START = { "algorithm.name": "flpdsp" };

  function input(field, id) {
    const usual = field.default === null || field.default === undefined ? "" : String(field.default), about = `${id}-about ${id}-refused`;
    if (field.kind === "choice" || field.kind === "boolean") {
      const empty = field.key in START ? [] : [make("option", { value: "" }, usual ? `default (${usual})` : "default")];
      return make("select", { id, "aria-describedby": about }, empty, field.options.map((option) => make("option", { value: String(option), selected: START[field.key] === option }, String(option))));
    }
    const number = field.kind === "integer" || field.kind === "number";
    return make("input", { id, type: "text", inputMode: number ? "decimal" : "text", placeholder: field.key === "name" ? "first-run" : usual, autocomplete: "off", spellcheck: false, required: field.key === "name", "aria-describedby": about });
  }

  function row(field, removable) {
    const id = `set-${field.key.replaceAll(".", "-")}`, control = input(field, id);
    const refused = make("p", { class: "refused", id: `${id}-refused`, role: "alert", hidden: true });
    const box = make("div", { class: "field", "data-key": field.key }, make("label", { htmlFor: id }, LABELS[field.key] ?? field.key), control,
      make("p", { class: "muted", id: `${id}-about` }, field.about), refused);
    if (removable) box.append(make("button", { type: "button", onclick: () => { box.remove(); delete boxes[field.key]; } }, "Leave out"));
    boxes[field.key] = { field, control, refused };
    return box;
  }

  /** The value of a field as the settings have it; undefined where it keeps its default. */
  function valueOf({ field, control }) {
    const text = control.value.trim();
    if (text === "") return undefined;
    if (field.kind === "boolean") return text === "true";
    if (field.kind === "integer" || field.kind === "number") return Number.isFinite(Number(text)) ? Number(text) : text;
    if (field.kind === "text" && (text.startsWith("[") || text === "true" || text === "false" || (field.key !== "name" && Number.isFinite(Number(text))))) { try { return JSON.parse(text); } catch { return text; } }
    return text;
  }

  function refuse(reasons) {
    for (const { refused, control } of Object.values(boxes)) { refused.hidden = true; refused.textContent = ""; control.removeAttribute("aria-invalid"); }
    const rest = [];
    for (const [key, words] of Object.entries(reasons)) {
      const box = boxes[key];
      if (!box) { rest.push(words); continue; }
      box.refused.hidden = false;
      box.refused.textContent = words;
      box.control.setAttribute("aria-invalid", "true");
    }
    lf.trouble(rest.join(" "));
    Object.values(boxes).find(({ refused }) => !refused.hidden)?.control.focus();
  }

  async function send(event) {
    event.preventDefault();
    const { name, ...others } = Object.fromEntries(Object.entries(boxes).map(([key, box]) => [key, valueOf(box)])), button = at("start");
    refuse({});
    button.disabled = true;
    button.textContent = "Checking the settings…";
    try {
      const told = await lf.post("/api/start", { name: String(name ?? ""), values: Object.fromEntries(Object.entries(others).filter(([, value]) => value !== undefined)) });
      if (told.refused) refuse(told.refused);
      else { document.body.dataset.started = told.started; window.location.assign("/"); return; }
    } catch (error) { lf.trouble(error.message); }
    button.disabled = false;
    button.textContent = "Start the run";
  }

  const more = make("select", { id: "more" }, make("option", { value: "" }, "choose a setting…"), fields.filter((field) => !field.asked).map((field) => make("option", { value: field.key }, field.key)));
  const added = make("div", { id: "added" });
  more.addEventListener("change", () => { const field = fields.find(({ key }) => key === more.value); if (field && !boxes[field.key]) { added.append(row(field, true)); boxes[field.key].control.focus(); } more.value = ""; });
  form.append(...fields.filter((field) => field.asked).map((field) => row(field, false)), added,
    make("div", { class: "field" }, make("label", { htmlFor: "more" }, "Any further setting"), more), make("button", { type: "submit", id: "start" }, "Start the run"));
  form.addEventListener("submit", send);
})(window.leanfed);
