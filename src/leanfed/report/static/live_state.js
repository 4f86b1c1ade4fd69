"use strict";
// Requests to the server, and a run's state with its buttons: for the list of runs and for a run's own page.
(function (lf) {
  const { make } = lf;

  /** Send JSON and return JSON; what the server explains becomes an error with its words. */
  lf.post = async function (path, value) {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value ?? {}) });
    const text = await response.text();
    let told;
    try { told = JSON.parse(text); } catch { told = { error: text || `the server answered ${response.status}` }; }
    if (!response.ok || told.error) throw new Error(told.error);
    return told;
  };

  /** The address of a run under one of the server's prefixes. */
  lf.place = (prefix, name) => `/${prefix}/${name.split("/").map(encodeURIComponent).join("/")}`;

  lf.duration = function (seconds) {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 120 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
  };

  lf.badge = (row) => make("span", { class: `badge ${row.state}`, "data-state": row.state }, row.state);

  lf.progressBar = (row) => make("span", { class: "done" },
    make("progress", { max: Math.max(row.rounds, 1), value: row.round, "aria-label": `rounds of ${row.title}` }), `${row.round} of ${row.rounds}`);

  /** The button that fits a run's state, if one does. */
  lf.action = function (row, done) {
    const verb = row.can_stop ? "stop" : row.can_resume ? "resume" : null;
    if (!verb) return row.state === "running" ? make("span", { class: "muted", title: "Another program runs it and may do more than this run; stop it where it was started." }, "started elsewhere") : "";
    const button = make("button", { type: "button", "data-action": verb, onclick: async () => {
      button.disabled = true;
      try { done(await lf.post(lf.place(verb, row.name)), null); } catch (error) { done(null, error.message); }
    } }, verb === "stop" ? "Stop" : "Resume");
    return button;
  };

  /** Follow a stream of server-sent events; `lost` tells when the server cannot be reached. */
  lf.follow = function (path, show, lost) {
    const stream = new EventSource(path);
    stream.addEventListener("message", (event) => { lost(false); show(JSON.parse(event.data)); });
    stream.addEventListener("error", () => lost(true));
    window.addEventListener("pagehide", () => stream.close());
    return stream;
  };
})(window.leanfed);
