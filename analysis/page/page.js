"use strict";
(() => {
  const processes = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";

  const make = (tag, attributes = {}, text = null) => {
    const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  };
  const grouped = (number) => number.toLocaleString("en-US");
  const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
  const scaled = (value, units, small) => {
    let [size, unit] = small;
    for (const [nextSize, nextUnit] of units) {
      if (Math.abs(value) / size < 999.5) break;
      [size, unit] = [nextSize, nextUnit];
    }
    const shown = value / size || 0; // no minus before a zero
    const digits = size === 1 ? 0 : Math.abs(shown) < 9.995 ? 2 : Math.abs(shown) < 99.95 ? 1 : 0;
    return `${digits ? shown.toFixed(digits) : grouped(Math.round(shown))}${unit}`;
  };
  const time = (ns) => scaled(ns, [[1e3, "us"], [1e6, "ms"], [1e9, "s"]], [1, "ns"]);
  const bytes = (number) => scaled(number, [[1e3, " kB"], [1e6, " MB"], [1e9, " GB"], [1e12, " TB"]], [1, " B"]);

  const ticks = (low, high, most) => {
    const raw = (high - low) / Math.max(most, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
    return found;
  };

  /* A chart over steps: axes, what `draw` draws, and a cursor that the pointer and the arrow keys move. */
  function plot(figure, { count, first, low, high, format, draw, describe, legend, height }) {
    const left = 62, right = 8, top = 12, bottom = 22;
    if (legend.length) {
      const list = make("ul", { class: "legend" });
      for (const [kind, text] of legend) {
        const item = make("li");
        if (kind === "▾") item.append(make("span", { class: "mark", "aria-hidden": "true" }, "▼"));
        else item.append(make("span", { class: kind === "dash" ? "dash" : `swatch c-${kind}` }));
        item.append(text);
        list.append(item);
      }
      figure.append(list);
    }
    const frame = make("div", { style: "position:relative" });
    figure.append(frame);
    const svg = make("svg:svg", { "aria-hidden": "true", focusable: "false" });
    const surface = make("div", {
      class: "surface", tabindex: "0", role: "slider", "aria-label": figure.dataset.label,
      "aria-valuemin": first[0], "aria-valuemax": first[count - 1],
    });
    const tip = make("div", { class: "tip", hidden: "" });
    frame.append(svg, surface, tip);
    let at = count - 1, width = 0, cursor = null;
    const y = (value) => top + (height - top - bottom) * (1 - (Math.min(value, high) - low) / (high - low || 1));
    const x = (index) => left + ((width - left - right) * index) / count;

    const paint = () => {
      const now = Math.round(frame.clientWidth);
      if (!now || now === width) return;
      width = now;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      draw.under?.(svg, { x, y, top, bottom: height - bottom, slot: x(1) - x(0) });
      for (const value of ticks(low, high, 4)) {
        svg.append(make("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
        svg.append(make("svg:text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)));
      }
      let free = -Infinity;
      for (const index of ticks(0, count - 1, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
        const text = String(first[index]), half = text.length * 3.5 + 6, place = x(index + 0.5);
        if (place - half < free || place + half > width) continue;
        free = place + half;
        svg.append(make("svg:text", { x: place, y: height - 5, "text-anchor": "middle" }, text));
      }
      draw.over(svg, { x, y, top, bottom: height - bottom, left, right: width - right, slot: x(1) - x(0) });
      cursor = make("svg:line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
      svg.append(cursor);
      Object.assign(surface.style, { left: `${left}px`, right: `${right}px`, top: `${top}px`, bottom: `${bottom}px` });
    };
    const show = (index) => {
      at = Math.max(0, Math.min(count - 1, index));
      const place = x(at + 0.5);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const { title, rows } = describe(at);
      tip.replaceChildren(make("b", {}, title));
      for (const [colour, name, value, more] of rows) {
        const row = make("div"), end = make("span", {}, value);
        const label = make("span");
        if (colour) label.append(make("span", { class: `swatch c-${colour}` }));
        label.append(name);
        if (more) end.append(make("span", { class: "more" }, ` ${more}`));
        row.append(label, end);
        tip.append(row);
      }
      tip.hidden = false;
      const room = frame.clientWidth - tip.offsetWidth;
      const shifted = place + 14 <= room ? place + 14 : place - 14 - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, shifted))}px`;
      tip.style.top = `${top}px`;
      surface.setAttribute("aria-valuenow", first[at]);
      surface.setAttribute("aria-valuetext", [title, ...rows.map(([, name, value]) => `${name} ${value}`)].join(", "));
    };
    const hide = () => {
      tip.hidden = true;
      cursor.setAttribute("visibility", "hidden");
    };
    surface.setAttribute("aria-valuenow", first[at]);
    const point = (event) => {
      const box = surface.getBoundingClientRect();
      show(Math.floor(((event.clientX - box.left) / box.width) * count));
    };
    surface.addEventListener("pointermove", point);
    surface.addEventListener("pointerdown", point);
    surface.addEventListener("pointerleave", () => surface.matches(":focus-visible") || hide());
    surface.addEventListener("blur", hide);
    surface.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20, Home: -count, End: count };
      if (event.key === "Escape") return hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(tip.hidden && Math.abs(moves[event.key]) === 1 ? at : at + moves[event.key]);
    });
    new ResizeObserver(paint).observe(frame);
    paint();
  }

  function stepChart(figure, chart) {
    const count = chart.first.length;
    const judged = chart.longest.slice(chart.cold);
    const longest = Math.max(...(judged.length ? judged : chart.longest));
    /* A few steps that are many times as long would press all others to the ground: they are cut. */
    const high = chart.p95 ? Math.max(Math.min(longest * 1.05, chart.p95 * 4), chart.p95 * 1.1) : longest * 1.05;
    const several = chart.first.some((number, index) => number !== chart.last[index]);
    const legend = chart.names.map((name, part) => [chart.colours[part], name]);
    if (chart.median) legend.push(["dash", `median ${time(chart.median)}`]);
    if (chart.slow.some(Boolean)) legend.push(["▾", `slow: more than ${chart.slowFactor} times the median`]);
    plot(figure, {
      count, first: chart.first, low: 0, high: high || 1, format: time, height: 260, legend,
      draw: {
        under(svg, { x, top, bottom }) {
          if (chart.cold) svg.append(make("svg:rect", { class: "cold", x: x(0), y: top, width: x(chart.cold) - x(0), height: bottom - top }));
        },
        over(svg, { x, y, top, left, right, slot }) {
          const gap = slot > 4 ? 1 : 0;
          const below = new Float64Array(count);
          chart.ns.forEach((values, part) => {
            let path = "";
            values.forEach((ns, index) => {
              if (!ns) return;
              const floor = y(below[index]), ceiling = y((below[index] += ns));
              if (floor - ceiling < 0.05) return;
              path += `M${x(index).toFixed(1)} ${floor.toFixed(1)}V${ceiling.toFixed(1)}h${(slot - gap).toFixed(2)}V${floor.toFixed(1)}z`;
            });
            svg.append(make("svg:path", { class: `part c-${chart.colours[part]}`, d: path }));
          });
          let whiskers = "", marks = "", cuts = "", marked = -Infinity;
          chart.longest.forEach((ns, index) => {
            const middle = x(index + 0.5);
            if (several && ns > below[index] * 1.02) whiskers += `M${middle} ${y(below[index])}V${y(ns)}`;
            if (ns > high) cuts += `M${middle - slot / 2 - 2} ${top + 7}l${slot / 2 + 2} -3l${slot / 2 + 2} 3`;
            if (!chart.slow[index] || middle - marked < 6) return; // marks that would lie on each other say nothing
            marked = middle;
            marks += `M${middle - 3.5} ${y(ns) - 7}h7l-3.5 5z`;
          });
          svg.append(make("svg:path", { class: "whisker", d: whiskers }));
          svg.append(make("svg:path", { class: "cut", d: cuts }));
          if (chart.median) svg.append(make("svg:line", { class: "median", x1: left, x2: right, y1: y(chart.median), y2: y(chart.median) }));
          svg.append(make("svg:path", { class: "slow", d: marks }));
        },
      },
      describe(index) {
        const one = chart.first[index] === chart.last[index];
        const total = chart.ns.reduce((sum, values) => sum + values[index], 0);
        const rows = chart.names.map((name, part) => {
          const more = chart.ns[part][index] - chart.usual[part];
          const note = more > 0.1 * chart.median && index >= chart.cold ? `+${time(more)}` : "";
          return [chart.colours[part], name, time(chart.ns[part][index]), note];
        }).filter((_, part) => chart.ns[part][index] > 0);
        if (!one) {
          rows.push(["", "longest", `${time(chart.longest[index])} (step ${chart.longestStep[index]})`, ""]);
          if (chart.slow[index]) rows.push(["", "slow", counted(chart.slow[index], "step"), ""]);
        }
        const name = one ? `Step ${chart.first[index]}` : `Steps ${chart.first[index]} to ${chart.last[index]}, mean`;
        return { title: `${name}: ${time(total)}`, rows };
      },
    });
  }

  function memoryChart(figure, memory) {
    const count = memory.bytes.length, most = Math.max(...memory.bytes), least = Math.min(...memory.bytes);
    /* Not from zero, or growth is not seen; not only what changed, or noise looks like growth. */
    const span = Math.max(most - least, most * 0.1);
    const low = Math.max(0, least - span * 0.5), high = most + span * 0.25;
    plot(figure, {
      count, first: memory.step, low, high, format: bytes, height: 170, legend: [],
      draw: {
        over(svg, { x, y, bottom }) {
          const line = memory.bytes.map((value, index) => `${x(index + 0.5).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
          svg.append(make("svg:path", { class: "area", d: `M${x(0.5)} ${bottom}L${line}L${x(count - 0.5)} ${bottom}z` }));
          svg.append(make("svg:path", { class: "line", d: `M${line}` }));
        },
      },
      describe: (index) => ({
        title: `Step ${memory.step[index]}: ${bytes(memory.bytes[index])}`,
        rows: [["", "since the first", `${memory.bytes[index] < memory.bytes[0] ? "−" : "+"}${bytes(Math.abs(memory.bytes[index] - memory.bytes[0]))}`, ""]],
      }),
    });
  }

  function flameGraph(box, tree) {
    const card = box.closest("section"), note = card.querySelector(".frame"), reset = card.querySelector(".reset");
    const find = card.querySelector(".find"), found = card.querySelector(".found"), usual = note.textContent;
    const ROW = 20, total = tree.samples[0], count = tree.name.length;
    const parent = new Int32Array(count).fill(-1), start = new Float64Array(count), end = new Int32Array(count);
    const open = [];
    for (let node = 0; node < count; node++) {
      while (open.length > tree.depth[node]) end[open.pop()] = node;
      if (open.length) {
        parent[node] = open[open.length - 1];
        start[node] = open.used[open.length - 1];
        open.used[open.length - 1] += tree.samples[node];
      } else open.used = [];
      open.used[open.length] = start[node];
      open.push(node);
    }
    while (open.length) end[open.pop()] = count;
    let root = 0, focused = 0, width = 0, sought = "";
    const shown = new Map();
    const hits = (node) => sought && `${tree.names[tree.name[node]]} ${tree.places[tree.name[node]]}`.toLowerCase().includes(sought);
    const percent = (samples) => `${((100 * samples) / total).toFixed(1)} %`;

    const describe = (node) => {
      const name = tree.name[node], waits = tree.waiting[node];
      const parts = [`${percent(tree.samples[node])}, ${counted(tree.samples[node], "sample")}`];
      if (tree.stepNs) parts.push(`about ${time((tree.stepNs * tree.samples[node]) / total)} of each step`);
      if (waits) parts.push(`waiting in ${Math.round((100 * waits) / tree.samples[node])} % of them`);
      note.replaceChildren(make("b", {}, tree.names[name]), ` ${tree.places[name]}`, make("br"), parts.join("; "));
    };
    const paint = () => {
      width = box.clientWidth;
      if (!width) return;
      box.replaceChildren();
      shown.clear();
      const above = [];
      for (let node = parent[root]; node >= 0; node = parent[node]) above.unshift(node);
      const unit = width / tree.samples[root];
      let deepest = 0;
      const add = (node, x, wide) => {
        const name = tree.name[node], depth = tree.depth[node];
        deepest = Math.max(deepest, depth);
        const kind = node === 0 ? "k-2" : `k-${tree.kinds[name]}`;
        const alternate = (tree.names[name].length + depth) % 2 ? " alt" : "";
        const button = make("button", {
          type: "button", tabindex: node === focused ? "0" : "-1", "data-node": node,
          class: `${kind}${alternate}${above.includes(node) ? " above" : ""}${hits(node) ? " hit" : ""}`,
          style: `left:${((100 * x) / width).toFixed(3)}%;top:${depth * ROW}px;width:calc(${((100 * wide) / width).toFixed(3)}% - ${wide > 3 ? 1 : 0}px)`,
          "aria-label": `${tree.names[name]}, ${percent(tree.samples[node])}`,
        }, wide > 34 ? tree.names[name] : "");
        if (wide <= 34) button.style.padding = "0";
        shown.set(node, button);
        box.append(button);
      };
      for (const node of above) add(node, 0, width);
      for (let node = root; node < end[root]; ) {
        const wide = tree.samples[node] * unit;
        if (wide < 1.5) { node = end[node]; continue; }
        add(node, (start[node] - start[root]) * unit, wide);
        node++;
      }
      box.append(make("div", { style: `position:absolute;top:0;left:0;width:1px;height:${(deepest + 1) * ROW}px`, "aria-hidden": "true" }));
      box.style.height = `${(deepest + 1) * ROW}px`;
      box.classList.toggle("searching", Boolean(sought));
      reset.disabled = root === 0;
    };
    const zoom = (node) => {
      const had = box.contains(document.activeElement);
      root = focused = node;
      paint();
      describe(node);
      if (had) shown.get(node)?.focus();
    };
    const go = (node) => {
      if (!shown.has(node)) return;
      shown.get(focused)?.setAttribute("tabindex", "-1");
      focused = node;
      shown.get(node).setAttribute("tabindex", "0");
      shown.get(node).focus();
      describe(node);
    };
    const nodeOf = (event) => {
      const button = event.target.closest("button");
      return button ? Number(button.dataset.node) : -1;
    };
    box.addEventListener("click", (event) => nodeOf(event) >= 0 && zoom(nodeOf(event)));
    box.addEventListener("pointerover", (event) => nodeOf(event) >= 0 && describe(nodeOf(event)));
    box.addEventListener("pointerleave", () => root ? describe(root) : note.replaceChildren(usual));
    box.addEventListener("focusin", (event) => nodeOf(event) >= 0 && describe(nodeOf(event)));
    box.addEventListener("keydown", (event) => {
      const node = nodeOf(event);
      if (node < 0) return;
      const inside = [...shown.keys()];
      const same = inside.filter((each) => tree.depth[each] === tree.depth[node]);
      const next = {
        ArrowUp: () => parent[node], ArrowDown: () => inside.find((each) => parent[each] === node),
        ArrowRight: () => same.find((each) => each > node), ArrowLeft: () => same.filter((each) => each < node).pop(),
        Home: () => root,
      }[event.key];
      if (event.key === "Escape") return zoom(Math.max(parent[root], 0));
      if (!next) return;
      event.preventDefault();
      const to = next();
      if (to !== undefined && to >= 0) go(to);
    });
    reset.addEventListener("click", () => zoom(0));
    find.addEventListener("input", () => {
      sought = find.value.trim().toLowerCase();
      let matched = 0;
      for (let node = 0; sought && node < count; ) {
        if (node && hits(node)) { matched += tree.samples[node]; node = end[node]; } else node++;
      }
      found.textContent = sought ? `in ${percent(matched)} of the samples` : "";
      paint();
    });
    new ResizeObserver(() => box.clientWidth !== width && paint()).observe(box);
    paint();
  }

  function sortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const value = (row, column) => {
      const cell = row.cells[column];
      return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.toLowerCase();
    };
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numbers = head.classList.contains("number");
        const was = head.getAttribute("aria-sort");
        const way = was ? (was === "ascending" ? "descending" : "ascending") : numbers ? "descending" : "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", way);
        const sign = way === "ascending" ? 1 : -1;
        const rows = [...body.rows].map((row) => [value(row, column), row]);
        rows.sort(([one], [other]) => sign * (one < other ? -1 : one > other ? 1 : 0));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  function filtered(input) {
    const card = input.closest("section"), rows = [...card.querySelector("tbody").rows], shown = card.querySelector(".shown");
    const texts = rows.map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase());
    input.addEventListener("input", () => {
      const sought = input.value.trim().toLowerCase();
      let count = 0;
      rows.forEach((row, index) => {
        row.hidden = !texts[index].includes(sought);
        if (!row.hidden) count++;
      });
      shown.textContent = sought ? `${grouped(count)} of ${grouped(rows.length)}` : "";
    });
  }

  for (const table of document.querySelectorAll("table.sortable")) sortable(table);
  for (const input of document.querySelectorAll("input.filter")) filtered(input);
  for (const figure of document.querySelectorAll(".plot.steps")) stepChart(figure, processes[figure.dataset.process].chart);
  for (const figure of document.querySelectorAll(".plot.memory")) memoryChart(figure, processes[figure.dataset.process].memory);
  for (const box of document.querySelectorAll(".flame")) flameGraph(box, processes[box.dataset.process].icicle);

  const choice = document.getElementById("process");
  if (choice) {
    const show = () => document.querySelectorAll(".process").forEach((one, index) => { one.hidden = index !== Number(choice.value); });
    choice.addEventListener("change", show);
    show();
  }
})();
