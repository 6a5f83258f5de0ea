"use strict";
// A run while it lasts (kernbench/html_report/server.py): each event is its whole state.

const charts = []; // that a change of the theme would paint again
const RATES_OVER = 10; // states that rates are an average over
const live = { seen: [], state: null, paused: false };

function clock(value) {
  const whole = Math.floor(value), parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return (parts[0] ? parts : parts.slice(1)).map((part, place) => (place ? String(part).padStart(2, "0") : part)).join(":");
}

function speeds(state) {
  const first = live.seen[0], took = state.elapsed - first.elapsed;
  if (!(took > 0) || !first.run.rows) return null;
  return { operations: (state.run.operations - first.run.operations) / took, time: (state.run.time - first.run.time) / took };
}

const count = (value) => value.toLocaleString("en");

function facts(state) {
  const { run } = state, made = speeds(state), { fullest } = run;
  const step = run.wanted ? `of ${count(run.wanted)}` : "";
  return [
    ["status", state.status, `for ${clock(state.elapsed)}`],
    ["virtual time", seconds(run.time), made ? `${seconds(made.time, 3)} in a second` : ""],
    ["operations", count(run.operations), made ? `${count(Math.round(made.operations))} in a second` : ""],
    ["collectives begun", count(run.begun), `${count(run.collectives)} have ended`],
    ["steps", count(run.steps), step],
    ["ranks alive", count(run.alive), `of ${count(run.ranks)}${run.world > run.ranks ? `, for a world of ${count(run.world)}` : ""}`],
    ["allocated at most", fullest ? size(fullest.peak) : "-", fullest ? `memory of rank ${fullest.rank ?? 0}, of ${size(fullest.capacity)}` : ""],
  ];
}

function memoryBar({ used, peak, capacity }) {
  const words = `${size(used)} allocated, at most ${size(peak)}, of ${size(capacity)}`, part = (value) => `${Math.min(100, (100 * value) / (capacity || 1))}%`;
  return element("div", { class: "fill", role: "img", "aria-label": words, title: words }, element("i", { style: `width:${part(used)}` }), element("b", { style: `left:${part(peak)}` }));
}

const WORDS = { running: "runs", waiting: "waits", ready: "begins", done: "has ended", failed: "has failed", aborted: "was stopped" };

function rankRow({ rank, phase, time, step, doing, memory }) {
  const words = ["done", "aborted"].includes(phase) ? "" : shortPlaces(doing.replace(/^is (running|ready) at /, "at ").replace("at <unknown>:0 in ?", ""));
  return element("tr", { class: phase },
    element("td", {}, `${rank}`), element("td", { class: phase === "failed" ? "words alert" : "words" }, WORDS[phase] ?? phase),
    element("td", {}, time === null ? "-" : seconds(time)), element("td", {}, count(step)),
    element("td", {}, memory ? memoryBar(memory) : null), element("td", {}, memory ? size(memory.used) : "-"), element("td", {}, memory ? size(memory.peak) : "-"),
    element("td", { class: "words", title: doing }, words));
}

function fillTable(box, heads, rows) {
  box.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)));
}

function show(state) {
  const { run } = state;
  at("subtitle").textContent = { starting: "is about to begin", running: "runs", "summing up": "has ended; its report is being made", ended: "has ended", failed: "has failed" }[state.status];
  at("failure").textContent = state.failure ?? "";
  at("failure").hidden = !state.failure;
  if (!run.rows) return;
  at("wait")?.remove();
  showFacts({ subtitle: at("subtitle").textContent, facts: facts(state), notes: [] });
  at("missing").hidden = !run.missing.length;
  fillTable(at("missing-table"), ["collective", "have come", "missing"], run.missing.map((each) => element("tr", {},
    element("td", {}, each.what), element("td", {}, count(each.there)), element("td", { class: "words" }, `${each.missing.length > 1 ? "ranks" : "rank"} ${ranges([...each.missing].sort((one, other) => one - other))}`))));
  at("ranks").hidden = !run.rows.length;
  fillTable(at("rank-table"), ["rank", "", "virtual time", "steps", "memory", "allocated", "at most", "now"], run.rows.map(rankRow));
  at("left-out").textContent = run.ranks > run.rows.length ? `and ${count(run.ranks - run.rows.length)} more ranks` : "";
}

function pause() {
  live.paused = !live.paused;
  at("pause").textContent = live.paused ? "go on" : "pause";
  at("pause").setAttribute("aria-pressed", live.paused);
  if (!live.paused && live.state) show(live.state);
}

// The report is where this page was. Who serves no more has nothing to give.
async function showReport() {
  const answer = await fetch("/state.json").catch(() => null);
  if (answer?.ok) location.reload();
  else lost("The run has ended, and its report is not served.");
}

function lost(words) {
  at("failure").textContent = words;
  at("failure").hidden = false;
}

function follow() {
  const events = new EventSource("/events");
  events.addEventListener("message", ({ data }) => {
    live.state = JSON.parse(data);
    live.seen = [...live.seen, live.state].slice(-RATES_OVER);
    const { status } = live.state, over = status === "ended" || status === "failed";
    if (over) events.close();
    if (!live.paused || over) show(live.state);
    if (status === "ended") showReport();
    document.documentElement.dataset.open = "yes";
  });
  events.addEventListener("error", () => lost("kernbench does not answer: it has ended, or cannot be reached. What is shown is what it said last."));
  events.addEventListener("open", () => { at("failure").hidden = true; });
}

setTheme();
followTheme();
at("pause").addEventListener("click", pause);
document.addEventListener("keydown", (event) => event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey && pause());
window.live = live;
follow();
