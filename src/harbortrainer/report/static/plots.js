// A figure that draws itself when it comes into view, and again when its width changes.
function figure(title, legend, draw, note) {
  const place = el("div", { class: "plot" });
  const items = legend.map(([label, colour]) =>
    el("span", { class: "key" }, el("i", { class: `swatch c${colour % 10}` }), label),
  );
  const about = note ? el("span", { class: "soft" }, note) : null;
  const caption = el("figcaption", {}, el("b", {}, title), " ", about, items);
  let width = 0;
  const again = () => {
    if (!place.clientWidth || place.clientWidth === width) return;
    width = place.clientWidth;
    place.replaceChildren(draw(width));
  };
  whenSeen(place, () => new ResizeObserver(again).observe(place));
  return el("figure", {}, caption, place);
}

function path(xs, ys, x, y) {
  let text = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || ys[i] === undefined) {
      pen = "M";
      continue;
    }
    text += `${pen}${x(xs[i]).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function band(series, x, y) {
  const points = series.xs.map((_, i) => i).filter((i) => series.low[i] !== null && series.high[i] !== null);
  const upper = points.map((i) => `${x(series.xs[i]).toFixed(1)},${y(series.high[i]).toFixed(1)}`);
  const lower = points.map((i) => `${x(series.xs[i]).toFixed(1)},${y(series.low[i]).toFixed(1)}`);
  return points.length ? svg("path", { class: "band", d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }) : null;
}

function drawSeries(root, series, x, y) {
  const group = svg("g", { class: `c${series.colour % 10}` });
  if (series.low && !series.bars) group.append(band(series, x, y) || "");
  if (series.low && series.bars) {
    series.xs.forEach((at, i) => {
      if (series.low[i] === null) return;
      const d = `M${x(at)},${y(series.low[i])}V${y(series.high[i])}M${x(at) - 4},${y(series.low[i])}h8M${x(at) - 4},${y(series.high[i])}h8`;
      group.append(svg("path", { class: "line thin", d }));
    });
  }
  group.append(svg("path", { class: series.dashed ? "line dashed" : "line", d: path(series.xs, series.ys, x, y) }));
  if (series.xs.length <= 60 || series.bars) {
    series.xs.forEach((at, i) => {
      if (series.ys[i] === null || series.ys[i] === undefined) return;
      const here = series.bars
        ? svg("rect", { class: "dot", x: x(at) - 3.5, y: y(series.ys[i]) - 3.5, width: 7, height: 7 })
        : svg("circle", { class: "dot", cx: x(at), cy: y(series.ys[i]), r: 2.4 });
      group.append(here);
    });
  }
  root.append(group);
}

// What the pointer is at, in one line under the plot.
function readout(root, plot, series, unit, height) {
  const line = svg("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
  const text = svg("text", { class: "readout", x: plot.right, y: 12, "text-anchor": "end" });
  root.append(line, text);
  const steps = [...new Set(series.flatMap((s) => s.xs))].sort((a, b) => a - b);
  root.addEventListener("pointermove", (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    const step = steps.reduce(
      (best, s) => (Math.abs(plot.x(s) - at) < Math.abs(plot.x(best) - at) ? s : best),
      steps[0],
    );
    const values = series.map((s) => s.ys[s.xs.indexOf(step)]).filter((v) => v !== undefined && v !== null);
    for (const name of ["x1", "x2"]) line.setAttribute(name, plot.x(step));
    line.setAttribute("visibility", "visible");
    text.textContent = `${step}: ${values.map((v) => number(v)).join(" · ")}`;
  });
  root.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    text.textContent = "";
  });
}

// series: {label, colour, xs, ys, low?, high?, bars?, dashed?}; `range`: a fixed y range; `marks`: {at, text}.
function lines({ title, unit, series, height = 210, zero = false, range = null, note = "", legend = true, marks = [] }) {
  const shown = series.filter((s) => extent(s.ys));
  if (!shown.length)
    return el("figure", {}, el("figcaption", {}, el("b", {}, title), " ", el("span", { class: "soft" }, "no value")));
  const draw = (width) => {
    const values = shown.flatMap((s) => [...s.ys, ...(s.low || []), ...(s.high || [])]);
    const [first, last] = extent(shown.flatMap((s) => s.xs));
    const xRange = first === last ? [first - 1, last + 1] : [first, last];
    const plot = axes(width, height, xRange, range || padded(extent(values), zero), "step", unit, true);
    for (const s of shown) drawSeries(plot.root, s, plot.x, plot.y);
    for (const { at, text } of marks.filter((mark) => mark.at >= xRange[0] && mark.at <= xRange[1])) {
      const line = svg("line", { class: "mark", x1: plot.x(at), x2: plot.x(at), y1: MARGIN.top, y2: plot.bottom });
      plot.root.append(fill(line, {}, [svg("title", {}, `from step ${at}: ${text}`)]));
    }
    readout(plot.root, plot, shown, unit, height);
    return plot.root;
  };
  return figure(title, legend ? shown.map((s) => [s.label, s.colour]) : [], draw, note);
}

// Neighbouring steps are averaged where there is no room for a bar each.
function binned(xs, layers, most) {
  const size = Math.ceil(xs.length / most);
  if (size <= 1) return { xs, layers: layers.map((layer) => layer.ys) };
  const starts = xs.map((_, i) => i).filter((i) => i % size === 0);
  return {
    xs: starts.map((i) => xs[i]),
    layers: layers.map((layer) => starts.map((i) => mean(layer.ys.slice(i, i + size).map((v) => v || 0)))),
  };
}

// layers: {label, colour, ys}, one on the other.
function stacks({ title, unit, xs, layers }) {
  const shown = layers.filter((layer) => layer.ys.some((v) => v));
  if (!shown.length) return el("p", { class: "soft" }, `${title}: no value`);
  const draw = (width) => {
    const bars = binned(xs, shown, Math.floor((width - 80) / 4));
    const tops = bars.xs.map((_, i) => sum(bars.layers.map((layer) => layer[i])));
    const [first, last] = extent(bars.xs);
    const gap = bars.xs.length > 1 ? (last - first) / (bars.xs.length - 1) : 1;
    const ranges = [[first - gap / 2, last + gap / 2], padded([0, extent(tops)[1]], true)];
    const plot = axes(width, 230, ...ranges, "step", unit, true);
    const wide = Math.max(1, (plot.x(first + gap) - plot.x(first)) * 0.8);
    bars.xs.forEach((at, i) => {
      let base = 0;
      shown.forEach((layer, k) => {
        const value = bars.layers[k][i] || 0;
        if (!value) return;
        const [y, bottom] = [plot.y(base + value), plot.y(base)];
        const place = { x: plot.x(at) - wide / 2, width: wide, y, height: Math.max(bottom - y, 0) };
        const title = svg("title", {}, `step ${at} · ${layer.label}: ${number(value)} ${unit} (${share(value, tops[i])})`);
        plot.root.append(svg("rect", { class: `bar c${layer.colour % 10}`, ...place }, title));
        base += value;
      });
    });
    return plot.root;
  };
  const legend = shown.map((layer) => [layer.label, layer.colour]);
  return figure(title, legend, draw);
}

// bars: [row, stage, begin, length]; `rows`: names; a click on a row calls `open` with it.
function gantt({ title, unit, bars, rows, stages, open }) {
  const tall = Math.max(3, Math.min(15, Math.floor(900 / Math.max(rows.length, 1))));
  const height = MARGIN.top + MARGIN.bottom + rows.length * tall;
  const draw = (width) => {
    const end = Math.max(...bars.map((bar) => bar[2] + bar[3]), 1e-3);
    const plot = axes(width, height, [0, end * 1.01], [0, 1], unit, "trials", false);
    plot.root.querySelectorAll(".grid, .grid + text").forEach((node) => node.remove());
    bars.forEach(([row, stage, begin, length]) => {
      const y = MARGIN.top + row * tall;
      const whole = stage === stages.length - 1;
      const box = svg("rect", {
        class: whole ? "bar whole" : `bar c${stage}`,
        x: plot.x(begin),
        y: y + 0.5,
        height: Math.max(tall - 1, 2),
        width: Math.max(plot.x(begin + length) - plot.x(begin), 0.7),
        click: () => open(row),
      });
      box.append(svg("title", {}, `${rows[row]}\n${stages[stage]}: ${number(begin)} s + ${number(length)} s`));
      plot.root.append(box);
    });
    return plot.root;
  };
  const legend = stages.slice(0, -1).map((stage, i) => [stage, i]);
  return figure(title, legend, draw);
}

function spark(values, range) {
  const [width, height] = [90, 18];
  const known = extent(values);
  if (!known) return "";
  const x = linear([0, Math.max(values.length - 1, 1)], [2, width - 2]);
  const y = linear(range || padded(known), [height - 2, 2]);
  const xs = values.map((_, i) => i);
  const last = svg("circle", { class: "dot", cx: x(xs.at(-1)), cy: y(values.at(-1)), r: 2 });
  const line = svg("path", { class: "line", d: path(xs, values, x, y) });
  return svg("svg", { class: "spark c0", width, height }, line, last);
}
