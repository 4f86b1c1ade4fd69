"use strict";
// A run's page while it goes on: the server tells when the run folder changes, the page fetches and shows what is new.
(function (lf) {
  const { make } = lf, at = (id) => document.getElementById(id), LEAST_MS = 1000;
  let row = JSON.parse(at("row").textContent), shown = lf.data ? row.version : null, fetching = false, lost = false, next = 0;

  function trouble(text) {
    at("trouble").hidden = !text;
    at("trouble").textContent = text || "";
  }

  function acted(told, problem) {
    if (told) row = told;
    draw();
    if (problem) trouble(problem);
  }

  function draw() {
    const accuracy = row.accuracy === null ? "" : `accuracy ${row.accuracy.toFixed(4)}`;
    const left = row.seconds_left === null ? "" : `${lf.duration(row.seconds_left)} left`;
    const waiting = row.round === 0 ? "no round has ended yet" : "";
    const words = lost ? ["the server does not answer; trying again"] : [accuracy, left, waiting].filter(Boolean);
    const held = document.activeElement?.dataset?.action;
    at("standing").replaceChildren(lf.badge(row), lf.progressBar(row), make("span", { class: "muted" }, words.join(", ")), lf.action(row, acted));
    if (held) at("standing").querySelector("button")?.focus();
    trouble(row.trouble);
    at("foot").textContent = "This page follows the run folder. Every figure can be saved as PNG, and what it shows as CSV or JSON.";
  }

  async function refresh() {
    if (fetching || document.hidden || row.version === shown) return;
    fetching = true;
    const began = performance.now(), version = row.version;
    try {
      const response = await fetch(lf.place("data", row.name));
      const data = await response.json();
      if (!response.ok) throw new Error(data.error);
      if (data) { lf.show(data); draw(); }
      shown = version;
      document.body.dataset.shownRounds = String(data ? data.runs[0].rounds : 0);
    } catch (error) { trouble(error.message); }
    clearTimeout(next); // a page that is slow to make is asked for less often
    next = setTimeout(() => { fetching = false; refresh(); }, Math.max(LEAST_MS, 3 * (performance.now() - began)));
  }

  draw();
  document.body.dataset.shownRounds = String(lf.data ? lf.data.runs[0].rounds : 0);
  document.addEventListener("visibilitychange", refresh);
  lf.follow(lf.place("events", row.name), (told) => { row = told; draw(); refresh(); }, (now) => { if (now !== lost) { lost = now; draw(); } });
})(window.leanfed);
