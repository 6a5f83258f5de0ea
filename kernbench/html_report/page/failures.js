"use strict";
// What went wrong, as pictures (kernbench/html_report/findings.py).

const DRAWS = { deadlock: drawCycle, mismatch: drawMismatch, race: drawRace, "out of memory": drawMemoryFailure };

function showFindings(run) {
  at("failures").hidden = !run.failures.length && !run.findings.length;
  for (const kind of Object.keys(DRAWS)) {
    const found = run.findings.filter((each) => each.kind === kind);
    if (found.length) addPictures(kind, found);
  }
}

// The pictures of one kind, of which one is seen: others are chosen from a list.
function addPictures(kind, found) {
  const head = element("h3", {}, kind[0].toUpperCase() + kind.slice(1)), body = element("div", {}), part = element("div", { class: "finding", "data-kind": kind }, head, body);
  const draw = (place) => {
    for (const drawn of charts.filter(({ chart }) => body.contains(chart.getDom()))) {
      drawn.chart.dispose();
      charts.splice(charts.indexOf(drawn), 1);
    }
    body.replaceChildren();
    DRAWS[kind](found[place], body);
  };
  if (found.length > 1) {
    const label = (each, place) => (kind === "out of memory" ? `${each.rank === null ? "main" : `rank ${each.rank}`}: ${size(each.missing)} too few` : kind === "race" ? `${place + 1}: ${each.title}, ${shortPlace(`${each.accesses.at(-1).file}:${each.accesses.at(-1).line}`)}` : `${place + 1}: ${each.group} #${each.sequence}`);
    const choice = element("select", { "aria-label": kind, onchange: ({ target }) => draw(+target.value) }, ...found.map((each, place) => element("option", { value: place }, label(each, place))));
    head.append(` (${found.length}) `, choice);
  }
  at("findings").append(part); // charts are as wide as what they stand in
  draw(0);
}

// Who waits for whom, of a deadlock: ranks in a circle, the cycle in the colour of an alert.
function drawCycle(found, body) {
  const chart = element("div", { class: "chart" }), words = element("dl");
  body.append(element("div", { class: "columns middle" }, chart, words));
  const most = 64, { waits_for: waits, cycle } = found, doing = new Map(found.doing), waiting = new Map(waits);
  const order = [...cycle, ...[...new Set([...doing.keys(), ...waiting.keys()])].filter((rank) => !cycle.includes(rank)).sort((a, b) => a - b)].slice(0, most);
  const known = new Set(order), next = new Map(cycle.map((rank, i) => [rank, cycle[(i + 1) % cycle.length]]));
  const links = waits.flatMap(([rank, others]) => (known.has(rank) ? others.filter((other) => known.has(other)).map((other) => ({ source: `${rank}`, target: `${other}`, inCycle: next.get(rank) === other })) : []));
  const shown = links.length > 600 ? links.filter((link) => link.inCycle) : links, small = order.length > 24;
  const encode = echarts.format.encodeHTML;
  chartIn(chart, 330, () => ({
    tooltip: { confine: true, extraCssText: "white-space: normal; max-width: 420px", formatter: ({ dataType, data }) => (dataType === "edge" ? `rank ${data.source} waits for rank ${data.target}` : `rank ${data.id}: ${encode(doing.get(+data.id) ?? "")}`) },
    series: [{
      type: "graph", layout: "circular", circular: { rotateLabel: false }, left: 60, right: 60, top: 36, bottom: 36, silent: false, edgeSymbol: ["none", "arrow"], edgeSymbolSize: 9,
      data: order.map((rank) => ({ id: `${rank}`, name: `${rank}`, symbolSize: small ? 16 : 34, itemStyle: { color: next.has(rank) ? colour("alert") : waiting.has(rank) ? colour("dma") : colour("launch") }, label: { show: true, formatter: `${rank}`, color: "#fff", fontSize: small ? 9 : 13, fontWeight: 600 } })),
      links: shown.map((link) => ({ ...link, lineStyle: { color: link.inCycle ? colour("alert") : colour("soft"), width: link.inCycle ? 2.5 : 1, opacity: link.inCycle ? 1 : 0.5, curveness: 0.12 } })),
    }],
  }));
  for (const rank of order.slice(0, 16)) words.append(element("dt", {}, `rank ${rank}`), element("dd", {}, shortPlaces(doing.get(rank) ?? "")));
  body.append(element("p", { class: "hint" }, cycle.length ? "An arrow leads from a rank to the one it waits for; red: the cycle, which no rank can leave." : "An arrow leads from a rank to the one it waits for. There is no cycle: a rank has ended, or never calls."));
}

// Ranks beside each other, and below each other what they called, by number: the calls that do not match in the colour of an alert.
function drawMismatch(found, body) {
  const numbers = [...new Set(found.columns.flatMap(({ calls }) => calls.map(([number]) => number)))].sort((a, b) => a - b), most = 8, columns = found.columns.slice(0, most);
  const box = (words, wrong) => {
    if (!words) return element("td", { class: "call none" }, "not called");
    const { operation, at: place, algorithm, ...given } = words, differs = (name) => wrong && found.differs.includes(name);
    const argument = ([name, value]) => element("span", { class: differs(name) ? "differs" : "" }, `${name} ${value}`);
    return element("td", { class: wrong ? "call wrong" : "call" }, element("b", { class: differs("operation") ? "differs" : "" }, operation), ...Object.entries(given).map(argument), differs("algorithm") ? argument(["algorithm", algorithm]) : null, element("small", { title: place }, shortPlace(place)));
  };
  body.append(
    element("p", {}, found.sequence < 0 ? `The two sides of ${found.group} differ in: ` : `Collective #${found.sequence} of ${found.group} differs in: `, element("b", { class: "differs" }, found.differs.join(", ") || "which one it is")),
    element("div", { class: "scroll" }, element("table", { class: "calls" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, found.sequence < 0 ? "" : "call"), ...columns.map(({ ranks }) => element("th", { scope: "col" }, `rank${ranks.length > 1 ? "s" : ""} ${ranges(ranks)}`)))),
      element("tbody", {}, ...numbers.map((number) => element("tr", {}, element("th", { scope: "row" }, number < 0 ? "message" : `#${number}`), ...columns.map(({ calls }) => box(calls.find(([each]) => each === number)?.[1], number === found.sequence))))))),
    element("p", { class: "hint" }, `Calls of the same number meet. Red: those that do not match; no data has moved.${found.columns.length > most ? ` ${found.columns.length - most} more ways to call it are not shown.` : ""}`),
  );
}

// Two strands, downwards: what each did, what the second knew of the first, and the edge that is missing.
function drawRace(found, body) {
  if (!found.sides) {
    body.append(element("p", {}, `${found.title}: ${found.what}`), element("ol", { class: "steps" }, ...found.accesses.map((each) => element("li", {}, element("b", {}, each.operation), ` ${each.does} it, on rank ${each.rank}, ${each.strand} `, element("small", { title: `${each.file}:${each.line}` }, shortPlace(`${each.file}:${each.line}`))))), element("p", {}, `To define it: ${shortPlaces(found.remedy)}`));
    return;
  }
  const [first, second] = found.sides, encode = echarts.format.encodeHTML, lists = found.sides.map(({ accesses, meets }, side) => {
    const other = found.sides[1 - side].knew, listed = [...accesses];
    if (other && !listed.some(([n]) => n === other[0])) listed.push(other);
    return listed.sort(([a], [b]) => a - b).map(([n, name, place]) => ({ n, name, place, meets: n === meets }));
  });
  const above = lists.map((list) => list.findIndex((each) => each.meets)), middle = Math.max(above[0], above[1] - 1, 0), placed = new Map();
  const nodes = lists.flatMap((list, side) => list.map((each, i) => {
    const node = { id: `${side}:${each.n}`, name: `${side}:${each.n}`, x: side, y: middle + side + i - above[side], side, each };
    placed.set(node.id, node);
    return node;
  }));
  const heads = found.sides.map(({ strand }, side) => ({ id: `head ${side}`, name: strand, x: side, y: Math.min(...nodes.map((node) => node.y)) - 1, side }));
  const links = [0, 1].flatMap((side) => [heads[side], ...nodes.filter((node) => node.side === side)].map((node, i, all) => (i ? { source: all[i - 1].id, target: node.id, kind: "order" } : null)).filter(Boolean));
  for (const [side, { knew, meets }] of found.sides.entries()) if (knew) links.push({ source: `${1 - side}:${knew[0]}`, target: `${side}:${meets}`, kind: "knew" });
  links.push({ source: `0:${first.meets}`, target: `1:${second.meets}`, kind: "missing" });
  const styles = { order: () => ({ color: colour("line"), width: 2, curveness: 0 }), knew: () => ({ color: colour("soft"), width: 1.5, curveness: 0.15 }), missing: () => ({ color: colour("alert"), width: 2.5, type: "dashed", opacity: 1, curveness: 0 }) };
  const said = { order: "", knew: "has waited for this", missing: "nothing orders these two" };
  const chart = element("div", { class: "chart race" }), rows = Math.max(...nodes.map((node) => node.y)) - heads[0].y;
  body.append(element("p", {}, `${found.title[0].toUpperCase()}${found.title.slice(1)}: ${found.what}`), chart);
  const tall = 40 * rows + 84, label = (node) => {
    const text = node.each ? `${node.each.name}${node.each.meets ? ` ${found.sides[node.side].does} it` : ""}\n{at|${shortPlace(node.each.place).replace(" in <module>", "")}}` : node.name.replace(", ", "\n"), wrong = node.each?.meets;
    return { show: true, position: node.each ? (node.side ? "right" : "left") : "top", formatter: text, align: node.each ? (node.side ? "left" : "right") : "center", color: wrong ? colour("alert") : colour("text"), fontWeight: wrong || !node.each ? 600 : 400, fontSize: 12, lineHeight: 15, rich: { at: { color: colour("soft"), fontSize: 10.5 } } };
  };
  chartIn(chart, tall, () => ({
    tooltip: { confine: true, extraCssText: "white-space: normal; max-width: 420px", formatter: ({ dataType, data }) => (dataType === "edge" ? said[data.kind] : data.each ? `${encode(found.sides[data.side].strand)}: ${encode(data.each.name)}<br>${encode(data.each.place)}` : encode(data.name)) },
    grid: { left: "36%", right: "36%", top: 52, bottom: 24 }, xAxis: { show: false, min: 0, max: 1 }, yAxis: { show: false, inverse: true, min: heads[0].y, max: heads[0].y + rows },
    series: [{
      type: "graph", coordinateSystem: "cartesian2d", edgeSymbolSize: 9, edgeSymbol: ["none", "none"],
      data: [...heads, ...nodes].map((node) => ({ ...node, value: [node.x, node.y], symbol: node.each ? "circle" : "rect", symbolSize: node.each ? (node.each.meets ? 16 : 9) : 3, itemStyle: { color: node.each?.meets ? colour("alert") : colour("launch") }, label: label(node) })),
      links: links.map((link) => ({ ...link, symbol: ["none", link.kind === "order" ? "none" : "arrow"], lineStyle: styles[link.kind](), label: { show: link.kind === "missing", formatter: "missing", color: colour("alert"), fontSize: 11 } })),
    }],
  }));
  body.append(
    element("p", { class: "hint" }, "Each column is what runs in order by itself, downwards. Grey arrow: the last that one has waited for. Red: the two accesses, and the order that is missing."),
    element("dl", {}, ...[["known", found.known.map(shortPlaces).join(" ")], ["to order them", shortPlaces(found.remedy)], ["the memory", shortPlaces(found.made)]].filter(([, words]) => words).flatMap(([name, words]) => [element("dt", {}, name), element("dd", {}, words)])),
  );
}

// What was alive, against what there is, and the request that reaches over it.
function drawMemoryFailure(found, body) {
  const unit = SIZES.find(([least]) => found.whole >= least) ?? SIZES.at(-1), chart = element("div", { class: "chart" });
  const who = found.rank === null ? "main" : `Rank ${found.rank}`, spare = ["attention", "kernel", "launch", "wait"];
  body.append(element("p", {}, `${who} in step ${found.step}: `, element("b", {}, found.operation || "an allocation"), ` asked for ${size(found.requested)}, which takes ${size(found.wanted)}; ${size(found.room)} left of ${size(found.whole)} ${found.limited ? "allowed" : "of the device"}. `, element("small", { title: found.place }, shortPlace(found.place))), chart);
  const bars = [...found.parts.map(([name, nbytes], i) => [name, nbytes, USES[name] ?? spare[i % spare.length]]), ["the request", found.wanted, "alert"]];
  chartIn(chart, 190, () => ({
    grid: { left: 16, right: 24, top: 64, bottom: 34 }, legend: { top: 0, type: "scroll", textStyle: { color: colour("soft") }, icon: "roundRect", itemWidth: 12, itemHeight: 12 },
    tooltip: { confine: true, valueFormatter: (value) => size(value * unit[0]) },
    xAxis: axis(unit[1], { type: "value", max: Math.max(found.whole, found.whole - found.room + found.wanted) / unit[0], nameGap: 4 }), yAxis: { type: "category", data: [""], show: false },
    series: bars.map(([name, nbytes, tint], i) => ({
      name, type: "bar", stack: "all", barWidth: 42, data: [nbytes / unit[0]], itemStyle: { color: colour(tint), opacity: name === "the request" ? 0.75 : 1 },
      markLine: i ? undefined : { silent: true, symbol: "none", precision: 15, lineStyle: { color: colour("alert"), type: "solid", width: 2 }, label: { formatter: `${found.limited ? "allowed" : "capacity"} ${size(found.whole)}`, color: colour("soft"), position: "end" }, data: [{ xAxis: found.whole / unit[0] }] },
    })),
  }));
  const tables = element("div", { class: "columns" });
  for (const title of ["module", "line"]) {
    if (found[title].length) {
      const box = element("div");
      tables.append(element("div", {}, element("h3", {}, `In use, by ${title}`), box));
      sizesTable(box, title, found[title], found.allocated);
    }
  }
  body.append(tables, element("h3", {}, "It would have fitted with any of"), element("ul", {}, ...found.remedies.map((each) => element("li", {}, each))));
}
