// Round steps for an axis: 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((n) => n * power).find((candidate) => span / candidate <= most);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

function padded([low, high], zero) {
  if (low === high) {
    const pad = Math.abs(low) * 0.1 || 1;
    return zero && low >= 0 ? [0, high + pad] : [low - pad, high + pad];
  }
  const pad = (high - low) * 0.06;
  return [zero && low >= 0 ? 0 : low - pad, high + pad];
}

const linear =
  ([from, to], [start, end]) =>
  (value) =>
    start + ((value - from) / (to - from || 1)) * (end - start);

const MARGIN = { left: 58, right: 14, top: 22, bottom: 38 };

// The frame of a plot: axes with their units, grid, ticks. Returns x, y (value -> pixel) and where to draw.
function axes(width, height, xRange, yRange, xLabel, yLabel, wholeSteps) {
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const x = linear(xRange, [MARGIN.left, right]);
  const y = linear(yRange, [bottom, MARGIN.top]);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const value of ticks(...yRange, 5)) {
    root.append(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }));
    root.append(svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, 3)));
  }
  for (const value of ticks(...xRange, width < 480 ? 5 : 9)) {
    if (wholeSteps && !Number.isInteger(value)) continue;
    root.append(svg("line", { class: "tick", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 }));
    root.append(svg("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, number(value, 3)));
  }
  root.append(svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  root.append(svg("text", { class: "unit", x: 4, y: 12 }, yLabel));
  root.append(
    svg("text", { class: "unit", x: (MARGIN.left + right) / 2, y: height - 5, "text-anchor": "middle" }, xLabel),
  );
  return { root, x, y, right, bottom };
}
