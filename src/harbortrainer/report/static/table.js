const PAGE_ROWS = 50;

// `open(row, rows)`: a row was clicked, of those that the filters leave.
// columns: {key, label, title?, get?(row), show?(row), text?: true, long?: true}. Rows are objects; without `get` a cell
// is the row's value of that key. `choices`: keys with a list to filter by.
function table({ columns: given, rows, choices = [], open = null, sort = null, place = "filter" }) {
  const columns = given.map((column) => ({ get: (row) => row[column.key], ...column }));
  const columnOf = (name) => columns.find((column) => column.key === name);
  let [key, down] = sort || [null, false];
  let [page, needle] = [0, ""];
  const wanted = {};
  const body = el("tbody");
  const heads = columns.map((column) =>
    el(
      "th",
      { scope: "col", class: column.text ? "" : "num", title: column.title },
      el("button", { type: "button", click: () => order(column.key) }, column.label),
    ),
  );
  const count = el("span", { class: "soft" });
  const back = el("button", { type: "button", click: () => turn(-1) }, "‹");
  const on = el("button", { type: "button", click: () => turn(1) }, "›");
  const search = el("input", {
    type: "search",
    placeholder: place,
    "aria-label": place,
    input: () => {
      needle = search.value.toLowerCase();
      page = 0;
      show();
    },
  });
  const lists = choices.map((name) => {
    const column = columnOf(name);
    const values = [...new Set(rows.map(column.get))].sort();
    const list = chooser(column.label, [["", "all"], ...values.map((v) => [`=${v}`, words(String(v))])], (value) => {
      wanted[name] = value && value.slice(1);
      page = 0;
      show();
    });
    list.dataset.key = name;
    return list;
  });

  const texts = columns.filter((column) => column.text);
  const kept = () =>
    rows.filter(
      (row) =>
        choices.every((name) => !wanted[name] || String(columnOf(name).get(row)) === wanted[name]) &&
        (!needle || texts.some((column) => String(column.get(row)).toLowerCase().includes(needle))),
    );

  function compare(a, b) {
    const column = columnOf(key);
    const [left, right] = [column.get(a), column.get(b)];
    const missing = (v) => v === null || v === undefined || v === "";
    if (missing(left) || missing(right)) return missing(left) - missing(right);
    const less = column.text ? String(left).localeCompare(String(right), "en", { numeric: true }) : left - right;
    return down ? -less : less;
  }

  function order(name) {
    down = key === name ? !down : !columnOf(name).text;
    key = name;
    page = 0;
    show();
  }

  function turn(by) {
    page += by;
    show();
  }

  function show() {
    const found = kept();
    if (key) found.sort(compare);
    const pages = Math.max(Math.ceil(found.length / PAGE_ROWS), 1);
    page = Math.min(page, pages - 1);
    const first = page * PAGE_ROWS;
    body.replaceChildren(
      ...found.slice(first, first + PAGE_ROWS).map((row) => {
        const cells = columns.map((c) => {
          const shown = c.show ? c.show(row) : c.text ? String(c.get(row) ?? "") : number(c.get(row));
          return el("td", { class: c.long ? "long" : c.text ? "" : "num" }, shown);
        });
        if (!open) return el("tr", {}, cells);
        const go = (event) => (event.type === "click" || event.key === "Enter") && open(row, found);
        return el("tr", { class: "opens", tabindex: 0, click: go, keydown: go }, cells);
      }),
    );
    heads.forEach((head, i) =>
      head.setAttribute("aria-sort", columns[i].key !== key ? "none" : down ? "descending" : "ascending"),
    );
    count.textContent = found.length
      ? `${first + 1}–${Math.min(first + PAGE_ROWS, found.length)} of ${number(found.length)}`
      : "none";
    back.disabled = page === 0;
    on.disabled = page >= pages - 1;
  }

  show();
  const bar = el("div", { class: "bar-of-table" }, search, lists, el("span", { class: "pager" }, count, back, on));
  const whole = el("table", {}, el("thead", {}, el("tr", {}, heads)), body);
  const node = el("div", { class: "table" }, bar, el("div", { class: "wide" }, whole));
  node.find = (text) => {
    for (const list of lists) list.querySelector("select").value = "";
    for (const name of choices) wanted[name] = "";
    search.value = text;
    search.dispatchEvent(new Event("input"));
  };
  return node;
}

// A plain table of [name, value…] rows.
function facts(heads, rows) {
  const names = heads.map((head) => el("th", { scope: "col" }, head));
  const line = ([name, ...cells]) => {
    const values = cells.map((cell) => el("td", {}, cell));
    return el("tr", {}, el("th", { scope: "row" }, name), values);
  };
  const head = heads.length ? el("thead", {}, el("tr", {}, names)) : null;
  return el("div", { class: "wide" }, el("table", { class: "facts" }, head, el("tbody", {}, rows.map(line))));
}
