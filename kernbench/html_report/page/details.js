"use strict";
// What is known of the chosen operation, or of all that is in a range.

function showDetails(run, timeline, span) {
  const box = at("details");
  box.replaceChildren();
  if (span < 0) {
    box.append(element("p", { class: "hint" }, "Choose an operation to see its arguments, shapes, bytes, source line and interval."));
    return;
  }
  const [name, kind, nbytes, place] = run.types[run.type[span]], { stack, shapes, flops, ...detail } = run.details[place];
  const lane = run.laneOf(span), took = run.end[span] - run.begin[span], rows = [];
  const group = run.groups.find(([ranks]) => ranks.includes(lane.rank));
  rows.push(["kind", CATEGORIES[run.kindOf[run.type[span]]][1]]);
  rows.push(["where", `${run.ownerOf(lane)}, ${lane.name}`]);
  if (group && group[0].length > 1) rows.push(["does the same", `ranks ${ranges(group[0])}`]);
  rows.push(["from", nanos(run.begin[span], 7)], ["to", nanos(run.end[span], 7)], ["takes", nanos(took)]);
  if (run.below[span] || run.above[span]) {
    rows.push(["80 % between", `${nanos(took * (1 - run.below[span] / 1000), 3)} and ${nanos(took * (1 + run.above[span] / 1000), 3)}`]);
  }
  if (nbytes) rows.push(["bytes", `${nbytes.toLocaleString("en")} (${size(nbytes)})`]);
  if (nbytes && took) rows.push([kind === "collective" ? "algbw" : "bytes/s", rate(nbytes / took / 1e-9, "B/s")]);
  if (flops) rows.push(["FLOPs", `${rate(flops, "FLOP")}, ${rate(flops / took / 1e-9, "FLOP/s")}`]);
  if (shapes) rows.push(["tensors", shapes]);
  if (run.call[span]) {
    const [inGroup, sequence] = run.calls[run.call[span] - 1], members = run.members(run.call[span]);
    const first = Math.min(...members.map((each) => run.begin[each])), last = members.reduce((a, b) => (run.begin[b] > run.begin[a] ? b : a));
    rows.push(["collective", `#${sequence} on ${inGroup}, ${counted(members.length, "member")} ran`]);
    const wait = run.begin[last] - first;
    if (wait > 0.5) rows.push(["waited", `up to ${nanos(wait)}, for rank ${run.laneOf(last).rank}`]);
  }
  for (const [key, value] of Object.entries(detail)) {
    if (key !== "group") rows.push([key, Array.isArray(value) ? value.join(", ") : String(value)]);
  }
  const list = element("dl");
  for (const [label, value] of rows) list.append(element("dt", {}, label), element("dd", {}, value));
  box.append(element("h3", {}, name), list);
  if (stack) {
    box.append(element("h3", { style: "margin-top:12px" }, "called from"));
    box.append(element("ol", {}, ...stack.map((line) => element("li", { title: line }, shortPlace(line)))));
  }
}

// What runs in a range, cut at its ends: time by kind, over the streams of all ranks that ran, and the operations that take most.
function showRange(run, begin, end) {
  const kinds = CATEGORIES.map(() => 0), operations = new Map(), ranks = new Set(run.lanes.map((lane) => lane.rank).filter((rank) => rank !== null));
  for (const lane of run.lanes) {
    for (let i = run.after(lane, begin); i < run.from(lane, end); i++) {
      const took = Math.min(run.end[i], end) - Math.max(run.begin[i], begin), type = run.type[i], kind = run.kindOf[type], name = run.types[type][0];
      if (lane.rank === null) continue;
      kinds[kind] += took;
      const found = operations.get(name) ?? { name, kind, took: 0, calls: 0 };
      found.took += took;
      found.calls += 1;
      operations.set(name, found);
    }
  }
  const box = at("details"), list = element("dl"), rest = element("div", { class: "scroll" }), whole = (end - begin) * Math.max(ranks.size, 1);
  list.append(element("dt", {}, "from"), element("dd", {}, nanos(begin, 7)), element("dt", {}, "to"), element("dd", {}, nanos(end, 7)));
  CATEGORIES.forEach(([, label], kind) => kinds[kind] && list.append(element("dt", {}, label), element("dd", {}, `${nanos(kinds[kind])}, ${share(kinds[kind], whole)}`)));
  box.replaceChildren(element("h3", {}, `a range of ${nanos(end - begin)}`), list, element("p", { class: "hint" }, `Times over ${ranks.size === 1 ? "the rank" : `all ${ranks.size} ranks that ran`}, added up; shares of the range on each.`), rest);
  const most = [...operations.values()].sort((a, b) => b.took - a.took);
  table(rest, ["operation", "calls", "time"], most.map(({ name, calls, took }) => [element("td", { title: name }, name), calls.toLocaleString("en"), nanos(took)]), 10);
}
