"use strict";
// Puts the page together.

function showSummary(run) {
  showFacts(run);
  const reports = new Map();
  for (const { rank, report, text, traceback } of run.failures) {
    const known = reports.get(report) ?? { ranks: [], text, traceback };
    known.ranks.push(rank);
    reports.set(report, known);
  }
  at("failure-texts").replaceChildren(...[...reports.values()].flatMap(({ ranks, text, traceback }) => [
    element("h3", {}, `rank${ranks.length > 1 ? "s" : ""} ${ranges(ranks)}`), element("pre", { tabindex: 0 }, text),
    traceback && element("details", {}, element("summary", {}, "traceback"), element("pre", { tabindex: 0 }, traceback)),
  ].filter(Boolean)));
  at("time").hidden = false;
}

function showTimeline(run) {
  const timeline = new Timeline(run, at("lanes"), (span) => showDetails(run, timeline, span), (begin, end) => showRange(run, begin, end));
  at("timeline").hidden = false;
  if (!run.lanes.length) {
    at("lanes").replaceWith(element("p", { class: "hint", id: "lanes" }, "Nothing took time on a device or a host: the run ended before its first operation."));
    document.querySelectorAll("#timeline .tools, #keys, #details").forEach((each) => each.remove());
    return null;
  }
  const { views, first } = timeline.views(), view = at("view"), search = at("search");
  view.replaceChildren(...views.map(([value, label]) => element("option", { value }, label)));
  view.value = first;
  view.addEventListener("change", () => timeline.show(view.value));
  search.addEventListener("input", () => {
    const found = timeline.search(search.value);
    timeline.firstMatch();
    at("found").textContent = found ? `${found.count.toLocaleString("en")} found, ${nanos(found.took)}` : "";
  });
  search.addEventListener("keydown", (event) => event.key === "Enter" && timeline.nextMatch());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      event.preventDefault();
      search.focus();
    }
  });
  const does = { in: () => timeline.zoom(0.5), out: () => timeline.zoom(2), all: () => timeline.look(0, run.length), path: () => timeline.alongPath(), sum: () => timeline.sum(...timeline.window) };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", does[button.dataset.do]);
  const kinds = new Set(run.kindOf);
  legend(at("legend"), [...CATEGORIES.map(([name, label], kind) => [`background:var(--${name})`, label, kind]).filter(([, , kind]) => kinds.has(kind)), ["background:var(--path);height:3px;vertical-align:3px", "critical path"]]);
  timeline.paint();
  timeline.show(first);
  showDetails(run, timeline, -1);
  return timeline;
}

async function open() {
  setTheme();
  const [run] = await Promise.all([Run.open(taken("kernbench-data")), openLibrary()]);
  registerShapes();
  showSummary(run);
  const timeline = showTimeline(run);
  showFindings(run);
  showTimes(run);
  showServing(run);
  showFlame(run);
  showRoofline(run);
  showMemory(run);
  showLinks(run);
  showComparison(run);
  showContents([["timeline", "timeline"], ["time", "where time goes"], ["serving", "requests"], ["flame", "lines"], ["roofline", "roofline"], ["memory", "memory"], ["links", "links"], ["compare", "compare"], ["notes", "notes"]]);
  followTheme(timeline);
  at("wait").remove();
  window.report = { run, timeline };
  document.documentElement.dataset.open = "yes";
}

open().catch(cannotOpen);
