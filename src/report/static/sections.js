const section = (id, title, about, ...children) =>
  el("section", { id }, el("h2", {}, title), about ? el("p", { class: "about" }, about) : null, children);

const column = (run, name) => run.metrics.values[name] || [];
const has = (run, name) => column(run, name).some((v) => v !== null);
const label = (page, run, text) => (page.runs.length > 1 ? (text ? `${run.name}: ${text}` : run.name) : text);

// A line goes on over the steps that have no value.
function metricSeries(page, name) {
  return page.runs.filter((run) => has(run, name)).map((run) => {
    const there = run.metrics.steps.map((_, i) => i).filter((i) => column(run, name)[i] !== null);
    const [xs, ys] = [there.map((i) => run.metrics.steps[i]), there.map((i) => column(run, name)[i])];
    return { label: run.name, colour: page.runs.length > 1 ? run.index : 0, xs, ys };
  });
}

// A metric of all runs, its unit on the axis.
function metric(page, name) {
  const odd = sum(page.runs.map((run) => run.metrics.odd[name]));
  const note = odd ? `${odd} values that are no finite number` : "";
  return lines({ title: name, unit: page.units[name] || "value", series: metricSeries(page, name), height: 170, legend: page.runs.length > 1, note });
}

// Those of the metrics that there are, beside each other.
const plots = (page, names) =>
  el("div", { class: "grid-of-plots" }, names.filter((name) => page.runs.some((run) => has(run, name))).map((name) => metric(page, name)));

function summary(page) {
  return page.runs.map((run) => {
    const rewards = column(run, "reward/mean").filter((v) => v !== null);
    const held = column(run, "eval/reward_mean").filter((v) => v !== null);
    const trained = run.rows.filter((t) => t.kind === "training");
    const faults = run.rows.filter((t) => ["infrastructure_error", "verifier_error"].includes(t.outcome)).length;
    const tiles = [
      ["reward, last step", rewards.length ? number(rewards.at(-1), 3) : "–", rewards.length ? `first ${number(rewards[0], 3)}` : "no step yet"],
      ["held out, last", held.length ? number(held.at(-1), 3) : "–", held.length ? `first ${number(held[0], 3)}` : "no evaluation"],
      ["steps", number(rewards.length), run.resumed.length ? `resumed ${run.resumed.length} ×` : ""],
      ["trials", number(run.rows.length), `${number(trained.length)} for training`],
      ["faults", number(faults), share(faults, run.rows.length)],
      ["sampled tokens", number(sum(run.rows.map((t) => t.sampled_tokens))), ""],
      ["wall time", duration(run.span.seconds), run.span.began || ""],
    ];
    const config = run.config;
    const facts = [config.model_name, config.backend, config.tasks_dir, config.loss_fn && `loss ${config.loss_fn}`, config.learning_rate && `learning rate ${config.learning_rate}`];
    return el("section", { class: "summary" },
      el("h2", {}, page.runs.length > 1 ? el("i", { class: `swatch c${run.index % 10}` }) : null, run.name),
      el("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      el("div", { class: "tiles" }, tiles.map(([name, value, more]) => el("div", {}, el("span", {}, name), el("b", {}, value), el("small", {}, more)))));
  });
}

function rewards(page) {
  const several = page.runs.length > 1;
  const training = page.runs.filter((run) => has(run, "reward/mean")).map((run) => {
    const at = new Map(run.intervals.steps.map((step, i) => [step, i]));
    const bound = (name) => run.metrics.steps.map((s, i) => (at.has(s) && column(run, "reward/mean")[i] !== null ? run.intervals[name][at.get(s)] : null));
    return { label: label(page, run, "training batch"), colour: several ? run.index : 0, xs: run.metrics.steps, ys: column(run, "reward/mean"), low: bound("low"), high: bound("high") };
  });
  const held = page.runs.filter((run) => has(run, "eval/reward_mean")).map((run) => {
    const rows = run.metrics.steps.map((_, i) => i).filter((i) => column(run, "eval/reward_mean")[i] !== null);
    const pick = (name) => rows.map((i) => column(run, name)[i] ?? null);
    const means = pick("eval/reward_mean");
    const errors = pick("eval/reward_stderr");
    const bound = (name, sign) => (has(run, name) ? pick(name) : means.map((m, i) => (errors[i] === null ? null : m + sign * 1.96 * errors[i])));
    return { label: label(page, run, "held-out tasks"), colour: several ? run.index : 1, xs: rows.map((i) => run.metrics.steps[i]), ys: means, low: bound("eval/reward_low", -1), high: bound("eval/reward_high", 1), bars: true, dashed: true };
  });
  const all = extent([...training, ...held].flatMap((s) => [...s.ys, ...s.low, ...s.high])) || [0, 1];
  const range = all[0] >= 0 && all[1] <= 1 ? [0, 1.02] : null;
  return section("reward", "Reward",
    "Mean reward of each training batch (line) and of the held-out tasks (squares). Band and bars: 95% interval of the mean over tasks.",
    lines({ title: "Reward", unit: "reward", series: [...training, ...held], height: 320, range }),
    plots(page, ["reward/best_of_group", "reward/std", "group/constant_fraction"]));
}

const FUNNEL = ["started", "finished", "graded", "trained"];
const LOST = ["replaced", "dropped", "quarantined", "cancelled", "masked"];

function funnels(page, run) {
  const parts = ["training", "evaluation", "other"].filter((kind) => run.funnel[kind]).map((kind) => {
    const counts = run.funnel[kind];
    const stages = [...FUNNEL, ...LOST, ...Object.keys(counts).filter((name) => name && ![...FUNNEL, ...LOST].includes(name))];
    const rows = stages.filter((name) => counts[name] || (FUNNEL.includes(name) && !(kind !== "training" && name === "trained"))).map((name) => {
      const fill = el("i", { class: FUNNEL.includes(name) ? "kept" : "lost" });
      fill.style.width = `${(100 * (counts[name] || 0)) / Math.max(counts.started || 0, counts.finished || 0, 1)}%`;
      return el("div", { class: "funnel-row" }, el("span", {}, words(name)), el("span", { class: "track" }, fill), el("b", {}, number(counts[name] || 0)));
    });
    return el("div", { class: "funnel" }, el("h3", {}, `${kind} trials`), rows);
  });
  const trained = run.rows.filter((t) => t.kind === "training" && t.reward !== null);
  const uses = [...new Set(trained.map((t) => t.use))].map((use) => [use, number(trained.filter((t) => t.use === use).length)]);
  const causes = table({
    rows: run.causes, sort: ["trials", true], place: "filter causes", choices: ["kind", "outcome"],
    columns: [
      { key: "trials", label: "trials", get: (c) => c.trials },
      { key: "kind", label: "kind", text: true, get: (c) => c.kind },
      { key: "outcome", label: "outcome", text: true, get: (c) => c.outcome, show: (c) => words(c.outcome) },
      { key: "stage", label: "ended in", text: true, get: (c) => c.stage },
      { key: "fate", label: "fate", text: true, get: (c) => c.fate },
      { key: "cause", label: "cause", text: true, get: (c) => c.cause },
    ],
  });
  return [el("div", { class: "funnels" }, parts, el("div", { class: "funnel" }, el("h3", {}, "graded, then"), uses.length ? facts([], uses) : el("p", { class: "soft" }, "no graded training trial"))), causes];
}

const STAGES = ["queued", "environment", "agent_setup", "agent", "sampling", "verifier", "teardown", "total"];
const TIMES = [["time/sample", "sampling", 0], ["time/update", "update", 1], ["time/publish", "publish", 2], ["time/evaluate", "evaluation", 3]];

function times(page, run) {
  const steps = run.metrics.steps;
  const value = (name, i) => column(run, name)[i] || 0;
  const layers = TIMES.map(([name, text, colour]) => ({ label: text, colour, ys: steps.map((_, i) => value(name, i)) }));
  const rest = steps.map((_, i) => Math.max(value("time/step", i) - value("time/sample", i) - value("time/update", i) - value("time/publish", i), 0));
  layers.push({ label: "rest of the step", colour: 7, ys: rest });
  const totals = layers.map((layer) => [layer.label, sum(layer.ys)]);
  const all = sum(totals.map(([, total]) => total));
  const known = Object.keys(run.metrics.values).filter((name) => name.startsWith("trial_time/")).map((name) => name.slice(11));
  const ordered = [...STAGES.filter((name) => known.includes(name)), ...known.filter((name) => !STAGES.includes(name))];
  const stages = ordered.map((name) => [name === "sampling" ? "sampling, in agent" : words(name), duration(mean(column(run, `trial_time/${name}`).filter((v) => v !== null)))]);
  return [
    stacks({ title: "A step's time", unit: "seconds", xs: steps, layers }),
    el("div", { class: "pair" },
      el("div", {}, el("h3", {}, "Whole run"), facts(["", "time", "share"], totals.map(([name, total]) => [name, duration(total), share(total, all)]))),
      el("div", {}, el("h3", {}, "A trial's stages, mean of the steps"), stages.length ? facts([], stages) : el("p", { class: "soft" }, "no value"))),
    plots(page, ["util/sampler_busy", "rollout/trials_per_second", "rollout/tail_ratio"]),
    timeline(run),
  ];
}

function timeline(run) {
  const names = Object.keys(run.timelines);
  if (!names.length) return el("p", { class: "soft" }, "No batch has its trials' times.");
  const place = el("div");
  const show = (name) => {
    const bars = run.timelines[name].bars;
    const order = [...new Set(bars.map((bar) => bar[0]))].sort((a, b) => bars.find((bar) => bar[0] === a)[2] - bars.find((bar) => bar[0] === b)[2]);
    const row = new Map(order.map((trial, i) => [trial, i]));
    const trials = order.map((index) => run.rows[index]);
    place.replaceChildren(gantt({
      title: `Trials of ${name}`, unit: "seconds since the batch's first trial started", stages: run.stages, rows: trials.map((t) => t.name),
      bars: bars.map(([trial, ...rest]) => [row.get(trial), ...rest]), open: (i) => openTrial(run, trials[i], trials),
    }));
  };
  const list = chooser("batch", names.map((name) => [name, name]), show);
  const first = names.findLast((name) => name.startsWith("step_")) || names.at(-1);
  list.querySelector("select").value = first;
  show(first);
  return el("div", {}, list, el("span", { class: "soft" }, " gaps within a trial: it waited for a place, or Harbor worked between two phases"), place);
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
  const rows = [...totals.map(([name, n]) => [name, number(n), share(n, all)]), ["all sampled", number(all), ""], ["all prompts, as sent", number(sum(run.rows.map((t) => t.prompt_tokens))), ""]];
  return [
    stacks({ title: "Sampled tokens, by what became of them", unit: "tokens", xs: steps, layers }),
    plots(page, ["train/tokens_per_unique_token", "train/action_token_fraction", "turn/sampled_tokens"]),
    facts(["", "tokens", "share"], rows),
  ];
}
