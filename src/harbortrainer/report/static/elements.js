// Elements are made of text nodes and attributes only: nothing that a run wrote is ever read as markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const served = () => !document.getElementById("data");
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const div = (...children) => el("div", {}, ...children);
const soft = (...text) => el("p", { class: "soft" }, ...text);
const folded = (title, ...children) => el("details", {}, el("summary", {}, title), ...children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// The value of this name in the page, else of the server that gave the page: `watch` keeps none in it.
async function unpack(id) {
  if (served()) return (await fetch(id)).json();
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const english = new Intl.NumberFormat("en", { maximumFractionDigits: 6 }); // one for a page: to make one is slow

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return english.format(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.max(digits - 2, 1));
  return english.format(Number(value.toPrecision(digits)));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${number(Math.round(seconds * 1000) / 1000, 3)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

const share = (part, whole) => (whole ? `${number((100 * part) / whole, 3)} %` : "–");
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
const mean = (values) => (values.length ? sum(values) / values.length : null);
const words = (name) => name.replaceAll("_", " ");

// Calls `then` once, when the element comes near the window.
function whenSeen(node, then) {
  const watch = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      watch.disconnect();
      then();
    },
    { rootMargin: "300px" },
  );
  watch.observe(node);
}

function chooser(label, options, changed) {
  const list = el("select", { change: () => changed(list.value) });
  for (const [value, text] of options) list.append(el("option", { value }, text));
  return el("label", { class: "chooser" }, label, " ", list);
}
