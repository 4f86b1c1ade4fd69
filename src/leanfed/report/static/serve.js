"use strict";
// What all served pages share: the theme, requests, and words for time.
(function (lf) {
  const at = (id) => document.getElementById(id), THEMES = ["auto", "light", "dark"];
  let theme = "auto";

  lf.at = at;

  function setTheme(name) {
    theme = name;
    if (name === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
    at("theme").textContent = `Theme: ${name}`;
    if (lf.data) lf.redraw();
  }
  at("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (theme === "auto") setTheme("auto"); });

  /** Show what went wrong, or nothing. */
  lf.trouble = function (text) {
    at("trouble").hidden = !text;
    at("trouble").textContent = text || "";
  };
})(window.leanfed);
