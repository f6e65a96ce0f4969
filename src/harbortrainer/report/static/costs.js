// What became of the trials, and where time and tokens went: of one run.
const FUNNEL = ["started", "finished", "graded", "trained"];
const LOST = ["replaced", "dropped", "quarantined", "cancelled", "masked"];

function funnels(page, run) {
  const parts = ["training", "evaluation", "other"]
    .filter((kind) => run.funnel[kind])
    .map((kind) => {
      const counts = run.funnel[kind];
      const stages = [...new Set([...FUNNEL, ...LOST, ...Object.keys(counts).filter((name) => name)])];
      const rows = stages
        .filter((name) => counts[name] || (FUNNEL.includes(name) && !(kind !== "training" && name === "trained")))
        .map((name) => {
          const fill = el("i", { class: FUNNEL.includes(name) ? "kept" : "lost" });
          fill.style.width = `${(100 * (counts[name] || 0)) / Math.max(counts.started || 0, counts.finished || 0, 1)}%`;
          const track = el("span", { class: "track" }, fill);
          const trials = el("b", {}, number(counts[name] || 0));
          return el("div", { class: "funnel-row" }, el("span", {}, words(name)), track, trials);
        });
      return el("div", { class: "funnel" }, el("h3", {}, `${kind} trials`), rows);
    });
  const trained = run.rows.filter((t) => t.kind === "training" && t.reward !== null);
  const count = (use) => number(trained.filter((t) => t.use === use).length);
  const uses = [...new Set(trained.map((t) => t.use))].map((use) => [use, count(use)]);
  const causes = table({
    rows: run.causes,
    sort: ["trials", true],
    place: "filter causes",
    choices: ["kind", "outcome"],
    columns: [
      { key: "trials", label: "trials" },
      { key: "kind", label: "kind", text: true },
      { key: "outcome", label: "outcome", text: true, show: (c) => words(c.outcome) },
      { key: "stage", label: "ended in", text: true },
      { key: "fate", label: "fate", text: true },
      { key: "cause", label: "cause", text: true, long: true },
    ],
  });
  const then = uses.length ? facts([], uses) : soft("no graded training trial");
  const graded = el("div", { class: "funnel" }, el("h3", {}, "graded, then"), then);
  return [el("div", { class: "funnels" }, parts, graded), hosts(run), causes];
}

// Runs on several machines only.
function hosts(run) {
  if (!run.hosts.length) return null;
  return table({
    rows: run.hosts,
    sort: ["host", false],
    place: "filter hosts",
    columns: [
      { key: "host", label: "host", text: true },
      { key: "trials", label: "trials", title: "that have ended and were not cancelled" },
      { key: "faults", label: "faults", title: "trials without a grade" },
      { key: "start", label: "s to start", title: "an environment, on average" },
    ],
  });
}

const STAGES = ["queued", "environment", "agent_setup", "agent", "sampling", "verifier", "teardown", "total"];
const TIMES = [
  ["time/sample", "sampling", 0],
  ["time/update", "update", 1],
  ["time/publish", "publish", 2],
  ["time/evaluate", "evaluation", 3],
];

function times(page, run) {
  const steps = run.metrics.steps;
  const value = (name, i) => column(run, name)[i] || 0;
  const layers = TIMES.map(([name, label, colour]) => ({ label, colour, ys: steps.map((_, i) => value(name, i)) }));
  const rest = steps.map((_, i) =>
    Math.max(value("time/step", i) - value("time/sample", i) - value("time/update", i) - value("time/publish", i), 0),
  );
  layers.push({ label: "rest of the step", colour: 7, ys: rest });
  const totals = layers.map((layer) => [layer.label, sum(layer.ys)]);
  const all = sum(totals.map(([, total]) => total));
  const shares = totals.map(([name, total]) => [name, duration(total), share(total, all)]);
  const known = Object.keys(run.metrics.values)
    .filter((name) => name.startsWith("trial_time/"))
    .map((name) => name.slice(11));
  const ordered = [...STAGES.filter((name) => known.includes(name)), ...known.filter((name) => !STAGES.includes(name))];
  const stages = ordered.map((name) => [
    name === "sampling" ? "sampling, in agent" : words(name),
    duration(mean(column(run, `trial_time/${name}`).filter((v) => v !== null))),
  ]);
  return [
    stacks({ title: "A step's time", unit: "seconds", xs: steps, layers }),
    el(
      "div",
      { class: "pair" },
      div(el("h3", {}, "Whole run"), facts(["", "time", "share"], shares)),
      div(
        el("h3", {}, "A trial's stages, mean of the steps"),
        stages.length ? facts([], stages) : soft("no value"),
      ),
    ),
    floorSection(run),
    plots(page, ["util/requests_in_flight", "util/agents_at_work", "rollout/trials_per_second", "rollout/tail_ratio"]),
    ages(page, run),
    timeline(run),
  ];
}

// The least that a step could take, had it nothing to wait for but its own longest trial: that, the update, the publishing.
function floors(run) {
  const longest = new Map();
  for (const t of run.rows) {
    if (t.kind !== "training" || t.step === null) continue;
    longest.set(t.step, Math.max(longest.get(t.step) || 0, t.seconds || 0));
  }
  return run.metrics.steps.map((step, i) => {
    const [whole, update, publish] = ["time/step", "time/update", "time/publish"].map((name) => column(run, name)[i] ?? null);
    if (!longest.get(step) || whole === null) return null;
    return longest.get(step) + (update || 0) + (publish || 0);
  });
}

function floorSection(run) {
  const ys = floors(run);
  const at = ys.map((_, i) => i).filter((i) => ys[i] !== null);
  if (!at.length) return soft("No step has both its time and its trials' times.");
  const xs = at.map((i) => run.metrics.steps[i]);
  const pick = (values) => at.map((i) => values[i]);
  const whole = pick(column(run, "time/step"));
  const floor = pick(ys);
  const series = [
    { label: "the step", colour: 0, xs, ys: whole },
    { label: "its floor", colour: 2, xs, ys: floor, dashed: true },
  ];
  const over = sum(whole) / sum(floor);
  const note = `${number(over, 3)} × its floor over the whole run; floor = longest trial + update + publish`;
  return lines({ title: "A step against its own floor", unit: "seconds", series, zero: true, note });
}

function timeline(run) {
  const names = Object.keys(run.timelines);
  if (!names.length) return soft("No batch has its trials' times.");
  const place = el("div");
  const show = (name) => {
    const bars = run.timelines[name].bars;
    const order = [...new Set(bars.map((bar) => bar[0]))].sort(
      (a, b) => bars.find((bar) => bar[0] === a)[2] - bars.find((bar) => bar[0] === b)[2],
    );
    const row = new Map(order.map((trial, i) => [trial, i]));
    const trials = order.map((index) => run.rows[index]);
    place.replaceChildren(
      gantt({
        title: `Trials of ${name}`,
        unit: "seconds since the batch's first trial started",
        stages: run.stages,
        rows: trials.map((t) => t.name),
        bars: bars.map(([trial, ...rest]) => [row.get(trial), ...rest]),
        open: (i) => openTrial(run, trials[i], trials),
      }),
    );
  };
  const choices = names.map((name) => [name, name]);
  const list = chooser("batch", choices, show);
  const first = names.findLast((name) => name.startsWith("step_")) || names.at(-1);
  list.querySelector("select").value = first;
  show(first);
  const gaps = " gaps within a trial: it waited for a place, or Harbor worked between two phases";
  return div(list, el("span", { class: "soft" }, gaps), place);
}

function tokenSection(page, run) {
  const steps = [...new Set(run.rows.map((t) => t.step).filter((s) => s !== null))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, i) => [step, i]));
  const part = (label, colour, test) => {
    const ys = steps.map(() => 0);
    for (const t of run.rows) if (t.step !== null && test(t)) ys[at.get(t.step)] += t.sampled_tokens;
    return { label, colour, ys };
  };
  const training = (t) => t.kind === "training";
  const layers = [
    part("trained", 2, (t) => training(t) && t.use === "trained"),
    part("graded, not trained", 4, (t) => training(t) && t.reward !== null && t.use !== "trained"),
    part("not graded", 3, (t) => training(t) && t.reward === null),
    part("evaluation", 0, (t) => !training(t)),
  ];
  const totals = layers.map((layer) => [layer.label, sum(layer.ys)]);
  const all = sum(totals.map(([, n]) => n));
  const rows = [
    ...totals.map(([name, n]) => [name, number(n), share(n, all)]),
    ["all sampled", number(all), ""],
    ["all prompts, as sent", number(sum(run.rows.map((t) => t.prompt_tokens))), ""],
  ];
  return [
    stacks({ title: "Sampled tokens, by what became of them", unit: "tokens", xs: steps, layers }),
    plots(page, ["train/tokens_per_unique_token", "train/action_token_fraction", "turn/sampled_tokens"]),
    facts(["", "tokens", "share"], rows),
    spending(run),
  ];
}

// What the run has spent by its last step, by what for, where its metrics say so (spend/*).
function spending(run) {
  const spent = (kind, part) => column(run, `spend/${kind}${part}`).findLast((v) => v !== null);
  const parts = Object.keys(run.metrics.values)
    .filter((name) => name.startsWith("spend/tokens"))
    .map((name) => name.slice("spend/tokens".length));
  if (!parts.length) return null;
  const rows = parts
    .sort((a, b) => (a === "") - (b === ""))
    .map((part) => [
      part ? words(part.slice(1)) : "all",
      number(spent("tokens", part)),
      share(spent("tokens", part), spent("tokens", "")),
      number((spent("container_sec", part) || 0) / 3600, 3),
      number(spent("usd", part), 3),
    ]);
  return div(el("h3", {}, "Spent"), facts(["", "tokens", "share", "container hours", "USD"], rows));
}
