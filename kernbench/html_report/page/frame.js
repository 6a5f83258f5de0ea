"use strict";
// What all pages have: light and dark, facts, notes, links to their parts.

function wantsDark() {
  const chosen = document.documentElement.dataset.chosen;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(first = null) {
  document.documentElement.dataset.theme = wantsDark() ? "dark" : "light";
  colours.clear();
  at("theme").textContent = wantsDark() ? "light" : "dark";
  first?.paint();
  for (const { paint } of charts) paint();
}

// Its button, and the system's wish; `first` is painted before the charts.
function followTheme(first = null) {
  at("theme").addEventListener("click", () => {
    document.documentElement.dataset.chosen = wantsDark() ? "light" : "dark";
    setTheme(first);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(first));
}

function showFacts({ subtitle, facts, notes }) {
  const bad = ([label, value]) => ["races", "failed", "found"].includes(label) || (label === "status" && !/^(ended|stopped)/.test(value));
  at("subtitle").textContent = subtitle;
  at("facts").replaceChildren(...facts.map((fact) => element("div", { class: bad(fact) ? "fact bad" : "fact" }, element("span", {}, fact[0]), element("b", {}, fact[1]), element("span", {}, fact[2]))));
  at("note-list").replaceChildren(...notes.map((note) => element("li", {}, note)));
  at("notes").hidden = !notes.length;
  at("summary").hidden = false;
}

function showContents(parts) {
  at("contents").replaceChildren(...parts.filter(([id]) => !at(id).hidden).map(([id, label]) => element("a", { href: `#${id}` }, label)));
}

function cannotOpen(error) {
  at("wait").textContent = `This report cannot be shown: ${error.message}`;
  at("wait").className = "alert";
  throw error;
}
