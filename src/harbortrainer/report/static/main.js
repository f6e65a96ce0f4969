function unpackTrials(run) {
  const { texts, shared } = run.trials;
  const names = Object.keys(run.trials).filter((name) => !["texts", "shared"].includes(name));
  const read = Object.fromEntries(names.map((name) => [name, shared.includes(name) ? (v) => texts[v] : (v) => v]));
  return run.trials.name.map((_, index) => {
    const trial = { index };
    for (const name of names) trial[name] = read[name](run.trials[name][index]);
    return trial;
  });
}

function metricGroups(page) {
  const groups = new Map();
  for (const name of Object.keys(page.units)) {
    const prefix = name.includes("/") ? name.split("/")[0] : "other";
    groups.set(prefix, [...(groups.get(prefix) || []), name]);
  }
  const first = ["sft", "optim", "logprobs", "kl", "server", "train"];
  const order = [...groups.keys()].sort(
    (a, b) => (first.indexOf(a) + 1 || 99) - (first.indexOf(b) + 1 || 99) || a.localeCompare(b),
  );
  return order.map((prefix) => {
    const plots = groups.get(prefix).map((name) => metric(page, name));
    const group = folded(`${prefix} · ${plots.length}`, el("div", { class: "grid-of-plots" }, plots));
    return fill(group, { open: first.includes(prefix) }, []);
  });
}

function flat(value, prefix = "") {
  if (Array.isArray(value)) return [[prefix, value.map((v) => (typeof v === "object" ? JSON.stringify(v) : v)).join(", ")]];
  if (value === null || typeof value !== "object") return [[prefix, String(value)]];
  return Object.entries(value).flatMap(([key, part]) => flat(part, prefix ? `${prefix}.${key}` : key));
}

function settings(page) {
  const maps = page.runs.map(
    (run) => new Map(flat({ ...run.config, effective: run.effective, versions: run.versions })),
  );
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  const row = (name) => [name, ...maps.map((map) => map.get(name) ?? "–")];
  const differ = names.filter((name) => new Set(maps.map((map) => map.get(name))).size > 1);
  const heads = ["", ...page.runs.map((run) => run.name)];
  const states = page.runs.flatMap((run) =>
    run.checkpoints.map((c) => [label(page, run, "") || "checkpoint", `after step ${c.step}`, c.path]),
  );
  const changes = page.runs.flatMap((run) =>
    run.changes.map((c) => [`from step ${c.step}`, label(page, run, c.field), plain(c.before), plain(c.now)]),
  );
  return [
    changes.length ? el("h3", {}, "Changed on resume") : null,
    changes.length ? facts(["", "field", "before", "now"], changes) : null,
    page.runs.length > 1
      ? div(el("h3", {}, "Differences"), differ.length ? facts(heads, differ.map(row)) : soft("none"))
      : null,
    folded(`every setting · ${names.length}`, facts(heads, names.map(row))),
    folded(`checkpoints · ${states.length}`, facts([], states)),
  ];
}

// The parts that show one run at a time.
function ofOneRun(page, run) {
  const trials = trialsTable(run);
  const choose = (task) => {
    trials.find(task);
    trials.scrollIntoView();
  };
  return [
    section(
      "outcomes",
      "Outcomes",
      "How many trials came how far, and why the others did not. A bar is a share of the trials started.",
      funnels(page, run),
    ),
    section(
      "time",
      "Where time went",
      "Seconds of each step by what the trainer did; evaluation comes on top of the step. util/requests_in_flight and util/agents_at_work: mean numbers while sampling; sampling is the limit only where both are near n_parallel_envs.",
      times(page, run),
    ),
    section(
      "tokens",
      "Tokens",
      "Of the trials of each step. train/tokens_per_unique_token: tokens sent to training / unique tokens; 1 = every token once.",
      tokenSection(page, run),
    ),
    section(
      "tasks",
      "Tasks",
      "A click on a task shows its trials.",
      tasksTable(run, choose),
      run.sources.length ? [el("h3", {}, "What rewards came from"), sourcesTable(run)] : [],
    ),
    section(
      "trials",
      "Trials",
      `${number(run.rows.length)} trials, ${number(Object.keys(run.panels).length)} of them in full. A click opens one.`,
      trials,
    ),
  ];
}

const SAMPLING = [
  ["reward", "Reward"],
  ["outcomes", "Outcomes"],
  ["time", "Time"],
  ["tokens", "Tokens"],
  ["tasks", "Tasks"],
  ["trials", "Trials"],
];

function draw(page) {
  page.runs.forEach((run, index) => Object.assign(run, { index, rows: unpackTrials(run) }));
  const one = el("div");
  const show = (index) => one.replaceChildren(...ofOneRun(page, page.runs[index]));
  const sampling = page.runs.filter((run) => !tuned(run)); // the others have no trials
  const choices = sampling.map((run) => [run.index, run.name]);
  const picker = sampling.length > 1 ? [chooser("outcomes to trials: of run", choices, show)] : [];
  const parts = [
    ...(sampling.length < page.runs.length ? [["loss", "Loss"]] : []),
    ...(sampling.length ? SAMPLING : []),
    ["metrics", "Metrics"],
    ["settings", "Settings"],
  ];
  const links = parts.map(([id, text]) => el("a", { href: `#${id}` }, text));
  const made = el("span", { class: "soft" }, `made ${page.made}`);
  document.getElementById("page").replaceChildren(
    el("header", {}, el("h1", {}, "Run report"), made, el("nav", {}, links)),
    ...summary(page),
    served() ? underWay(page) : "",
    sampling.length < page.runs.length ? losses(page) : "",
    sampling.length ? rewards(page) : "",
    ...picker,
    one,
    section("metrics", "Metrics", "Everything in metrics.jsonl, by group: learning first.", metricGroups(page)),
    section("settings", "Settings", "", settings(page)),
  );
  if (sampling.length) show(sampling[0].index);
}

async function main() {
  draw(await unpack("data"));
  if (served()) follow(draw);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

main();
