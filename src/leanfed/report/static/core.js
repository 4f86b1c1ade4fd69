"use strict";
// Packed columns, colours, numbers as text, elements, downloads: what every other script of the page uses.
window.leanfed = { state: { run: null, hidden: new Set(), choices: {} }, figures: [] };

(function (lf) {
  // Okabe and Ito's colours; the last one is the text's colour, so that it shows in light and dark.
  const SERIES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];

  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i += 1) out[i] = raw.charCodeAt(i);
    return out.buffer;
  }

  /** A packed column as an array of numbers; null where it is empty. */
  lf.column = function (packed) {
    if (!packed) return [];
    if (packed.u32 !== undefined) return Array.from(new Uint32Array(bytes(packed.u32)));
    return Array.from(new Float32Array(bytes(packed.f32)), (v) => (Number.isFinite(v) ? Number(v.toPrecision(7)) : null));
  };

  /** A packed matrix as rows of numbers; null where it is empty. */
  lf.matrix = function (packed) {
    const codes = new Uint16Array(bytes(packed.u16)), rows = [];
    for (let r = 0; r < packed.rows; r += 1) {
      const row = new Array(packed.columns);
      for (let c = 0; c < packed.columns; c += 1) {
        const code = codes[r * packed.columns + c];
        row[c] = code === 65535 ? null : Number((packed.low + code * packed.step).toPrecision(6));
      }
      rows.push(row);
    }
    return rows;
  };

  /** How far the entries of a packed matrix lie apart; 0 where all are the same. */
  lf.spread = (packed) => packed.high - packed.low;

  /** Text for the plotting script, which would read some markup: shown as it is written. */
  lf.plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  /** Plain text in lines of about so many letters, for labels beside an axis. */
  lf.wrapped = (text, most = 14) => text.split(" ").reduce((lines, word) => {
    const last = lines[lines.length - 1];
    if (last && (last + word).length < most) lines[lines.length - 1] = `${last} ${word}`; else lines.push(word);
    return lines;
  }, []).map(lf.plain).join("<br>");

  /** An element with properties and children; texts become text nodes, never markup. */
  lf.make = function (tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  };

  lf.isDark = function () {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  };

  lf.theme = function () {
    const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(name).trim();
    return { text: of("--text"), muted: of("--muted"), line: of("--line"), card: of("--card"), accent: of("--accent") };
  };

  /** Colour, dash and symbol of a series; they repeat only after all pairs are used. */
  lf.look = function (number) {
    const colours = [...SERIES, lf.theme().text];
    return {
      colour: colours[number % colours.length],
      dash: DASHES[Math.floor(number / colours.length) % DASHES.length],
      symbol: SYMBOLS[number % SYMBOLS.length],
    };
  };

  // What is no method (a way of counting, a stage): colours that no method has.
  const NEUTRAL = { light: ["#4C5A67", "#93A1AD", "#6F5E8C", "#C3CCD4", "#A898C0"], dark: ["#C3CCD4", "#7C8A97", "#A898C0", "#56626D", "#8371A3"] };
  lf.neutral = (number) => { const colours = NEUTRAL[lf.isDark() ? "dark" : "light"]; return colours[number % colours.length]; };

  /** The look of a group of runs: its method's colour, which is the same in every figure and page. */
  lf.groupLook = function (number) {
    const { look } = lf.data.groups[number], usual = lf.look(number);
    if (!look) return usual;
    const colour = lf.isDark() ? (look.dark ?? look.colour) : look.colour;
    return { ...usual, colour, dash: look.dash };
  };

  /** A share in percent; one that is neither none nor all is never called so. */
  lf.share = (value) => (value > 0 && value < 0.01 ? "under 1 %" : value < 1 && value > 0.99 ? "over 99 %" : `${(100 * value).toFixed(0)} %`);

  lf.faded = function (colour, alpha) {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  };

  /** A number with about four figures, thousands apart. */
  lf.number = function (value, figures = 4) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(figures - 2).replace("e+", "e");
    const decimals = Math.max(0, figures - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en", { maximumFractionDigits: decimals });
  };

  lf.percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);

  /** Comma-separated values with quotes where they are needed. */
  lf.csv = function (table) {
    const cell = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    return [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  };

  lf.save = function (name, type, content) {
    const url = content.startsWith("data:") ? content : URL.createObjectURL(new Blob([content], { type }));
    const link = lf.make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
})(window.leanfed);
