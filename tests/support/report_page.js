// Runs a report's script as it stands in the page, on the little of a browser's DOM that it uses. Reads the path of a page
// from each line of its input. Everything is drawn, sorted, filtered and opened; the answer is a line of JSON: texts,
// figures without axes, rows after a filter. One process walks many pages: to start is half the time of a small one.

class Node_ {
  constructor(tag) {
    this.tag = tag;
    this.children = [];
    this.attributes = {};
    this.listeners = {};
    this.dataset = {};
    this.parent = null;
    this.value = "";
    this.style = { setProperty() {} };
    this.clientWidth = 800;
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "value") this.value = String(value);
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value);
  }
  addEventListener(name, listener) {
    (this.listeners[name] ||= []).push(listener);
  }
  dispatchEvent(event) {
    for (const listener of this.listeners[event.type] || []) listener({ target: this, clientX: 300, ...event });
  }
  append(...nodes) {
    for (const node of nodes) {
      if (typeof node === "object" && !(node instanceof Node_)) throw new Error(`not a node: ${node}`);
      const child = node instanceof Node_ ? node : Object.assign(new Node_("#text"), { words: String(node) });
      child.remove();
      child.parent = this;
      this.children.push(child);
    }
  }
  replaceChildren(...nodes) {
    for (const child of [...this.children]) child.remove();
    this.append(...nodes);
  }
  remove() {
    if (this.parent) this.parent.children.splice(this.parent.children.indexOf(this), 1);
    this.parent = null;
  }
  get textContent() {
    return this.words ?? this.children.reduce((words, child) => words + child.textContent, "");
  }
  set textContent(words) {
    this.replaceChildren(words);
  }
  all(test, found = []) {
    for (const child of this.children) {
      if (test(child)) found.push(child);
      child.all(test, found);
    }
    return found;
  }
  querySelectorAll(selector) {
    const names = selector.split(",").map((part) => part.trim());
    return this.all((node) => names.some((n) => n === node.tag || (n[0] === "." && node.has(n.slice(1)))));
  }
  querySelector(selector) {
    return this.querySelectorAll(selector)[0] || null;
  }
  has(name) {
    return (this.attributes.class || "").split(" ").includes(name);
  }
  getBoundingClientRect() {
    return { left: 0, top: 0 };
  }
  scrollIntoView() {}
  showModal() {}
  close() {
    this.dispatchEvent({ type: "close" });
  }
}

function open(text) {
  const ids = { page: new Node_("main") };
  for (const [, id, words] of text.matchAll(/<script type="text\/plain" id="(\w+)">([^<]*)<\/script>/g))
    ids[id] = { textContent: words };
  globalThis.document = {
    documentElement: new Node_("html"),
    body: new Node_("body"),
    createElement: (tag) => new Node_(tag),
    createElementNS: (_, tag) => new Node_(tag),
    getElementById: (id) => ids[id],
  };
  return ids.page;
}
globalThis.Event = class {
  constructor(type) {
    this.type = type;
  }
};
globalThis.IntersectionObserver = class {
  constructor(then) {
    this.then = then;
  }
  observe() {
    queueMicrotask(() => this.then([{ isIntersecting: true }]));
  }
  disconnect() {}
};
globalThis.ResizeObserver = class {
  constructor(then) {
    this.then = then;
  }
  observe() {
    this.then();
  }
};

const settled = async (ready) => {
  while (!ready()) await new Promise((go) => setImmediate(go));
  await new Promise((go) => setImmediate(go));
};
const click = (node) => node.dispatchEvent({ type: "click" });

async function walk(text) {
  const root = open(text);
  const script = [...text.matchAll(/<script>([^]*?)<\/script>/g)].at(-1)[1];
  new Function(script)();
  await settled(() => document.documentElement.dataset.ready);
  for (const head of root.all((n) => n.tag === "th" && n.children[0]?.tag === "button")) click(head.children[0]);
  for (const plot of root.querySelectorAll("svg")) plot.dispatchEvent({ type: "pointermove" });
  const told = { page: root.textContent, sections: {}, trials: [], bare: [] };
  for (const part of root.querySelectorAll("section"))
    if (part.attributes.id) told.sections[part.attributes.id] = part.textContent;
  for (const figure of root.querySelectorAll("figure")) {
    const labels = figure.querySelectorAll("text").filter((node) => node.textContent);
    if (!figure.textContent.includes("no value") && labels.length < 3) told.bare.push(figure.textContent);
  }
  const table = root.querySelectorAll(".table").at(-1);
  const rows = () => (table ? table.querySelectorAll("tr") : []).filter((row) => row.has("opens"));
  told.all = rows().length;
  for (const row of rows()) {
    click(row);
    await settled(() => true);
    const dialog = document.body.children.at(-1);
    const full = !row.textContent.includes("row only");
    if (full) await settled(() => dialog.textContent.includes("Verifier") && dialog.textContent.includes("Tokens"));
    const ratios = dialog.all((node) => node.dataset.ratio).length;
    told.trials.push({ name: dialog.attributes["aria-label"], text: dialog.textContent, ratios });
    dialog.close();
  }
  if (table) table.find("no such trial");
  told.none = rows().length;
  return told;
}

async function main() {
  for await (const path of require("node:readline").createInterface({ input: process.stdin }))
    console.log(JSON.stringify(await walk(require("node:fs").readFileSync(path, "utf8"))));
}

process.on("unhandledRejection", (error) => {
  throw error;
});
main();
