"use strict";
// Kinds of operations, numbers with units, and elements: text is always put in as text.

const CATEGORIES = [
  ["gemm", "matrix products"], ["attention", "attention"], ["kernel", "kernels"], ["math", "bound by memory"],
  ["collective", "collectives, messages"], ["dma", "copies"], ["other", "other"], ["launch", "host launches"], ["wait", "host waits"],
  ["first-token", "requests, to the first token"], ["decoding", "requests, decoding"],
];
const CATEGORY = new Map(CATEGORIES.map(([name], place) => [name, place]));
const UNNAMED = new Set(["launch", "wait"].map((name) => CATEGORY.get(name))); // too short and too many for labels

// Of a kind of operation, or of a request's phase; "other" where there is none.
function categoryOf(kind, { phase }) {
  return CATEGORY.get(kind === "request" ? (phase === "decoding" ? phase : "first-token") : kind) ?? CATEGORY.get("other");
}

const colours = new Map();

function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}

function scaled(value, units, digits = 4) {
  value = Number(value.toPrecision(digits)); // 999.99 is 1000, of the next unit
  const [size, unit] = units.find(([least]) => Math.abs(value) >= least * (1 - 1e-9)) ?? units.at(-1);
  return `${parseFloat((value / size).toPrecision(digits)).toLocaleString("en")} ${unit}`;
}

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const RATES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

const seconds = (value, digits) => (value ? scaled(value, TIMES, digits) : "0");
// Moments of an axis, all in the unit of the last.
function inOneUnit(last) {
  const [size, unit] = TIMES.find(([least]) => last >= least) ?? TIMES.at(-1);
  return (value) => (value ? `${parseFloat((value / size).toPrecision(4))} ${unit}` : "0");
}
const nanos = (value, digits) => seconds(value * 1e-9, digits);
const size = (value) => (value ? scaled(value, SIZES) : "0");
const rate = (value, unit) => scaled(value, RATES) + unit;
const share = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(1)} %`;
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const shortPlaces = (text) => text.replace(/\/\S*\/(?=[^\s/]+:\d)/g, "");
const shortPlace = (line) => String(line).replace(/^.*\/(?=[^/]+:\d)/, "");

// Ranks in words: 0-3, 8, 12-15
function ranges(ranks) {
  const parts = [];
  for (let i = 0; i < ranks.length; i++) {
    const first = ranks[i];
    while (i + 1 < ranks.length && ranks[i + 1] === ranks[i] + 1) i++;
    parts.push(ranks[i] === first ? `${first}` : `${first}-${ranks[i]}`);
  }
  return parts.length > 6 ? `${parts.slice(0, 5).join(", ")}, ...` : parts.join(", ");
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key === "style") made.style.cssText = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Of two, the text's colour that is read better on a colour #rrggbb (WCAG's relative luminance).
function textOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

const at = (id) => document.getElementById(id);
