const section = (id, title, about, ...children) =>
  el("section", { id }, el("h2", {}, title), about ? el("p", { class: "about" }, about) : null, children);

const column = (run, name) => run.metrics.values[name] || [];
const has = (run, name) => column(run, name).some((v) => v !== null);
const label = (page, run, text) => (page.runs.length > 1 ? (text ? `${run.name}: ${text}` : run.name) : text);

// A line goes on over the steps that have no value.
function metricSeries(page, name) {
  return page.runs
    .filter((run) => has(run, name))
    .map((run) => {
      const there = run.metrics.steps.map((_, i) => i).filter((i) => column(run, name)[i] !== null);
      const [xs, ys] = [there.map((i) => run.metrics.steps[i]), there.map((i) => column(run, name)[i])];
      return { label: run.name, colour: page.runs.length > 1 ? run.index : 0, xs, ys };
    });
}

// A metric of all runs, its unit on the axis.
function metric(page, name) {
  const odd = sum(page.runs.map((run) => run.metrics.odd[name]));
  const note = odd ? `${odd} values that are no finite number` : "";
  const plot = lines({
    title: name,
    unit: page.units[name] || "value",
    series: metricSeries(page, name),
    height: 170,
    legend: page.runs.length > 1,
    note,
  });
  return fill(plot, { title: page.about[name] }, []);
}

// Those of the metrics that there are, beside each other.
function plots(page, names) {
  const there = names.filter((name) => page.runs.some((run) => has(run, name)));
  return el("div", { class: "grid-of-plots" }, there.map((name) => metric(page, name)));
}

// Runs of supervised fine-tuning have losses, no trials and no rewards.
const tuned = (run) => has(run, "sft/nll") || has(run, "sft/held_out_nll");

const first = (values) => `first ${number(values[0], 3)}`;

function tuningTiles(run) {
  const losses = column(run, "sft/nll").filter((v) => v !== null);
  const held = column(run, "sft/held_out_nll").filter((v) => v !== null);
  return [
    ["loss, last step", number(losses.at(-1), 3), losses.length ? first(losses) : "no step yet"],
    ["held-out loss, last", number(held.at(-1), 3), held.length ? first(held) : "no measurement"],
    ["held-out loss, best", held.length ? number(Math.min(...held), 3) : "–", ""],
    ["steps", number(losses.length), run.resumed.length ? `resumed ${run.resumed.length} ×` : ""],
    ["conversations", number(sum(column(run, "train/datums"))), "trained on"],
    ["tokens", number(sum(column(run, "train/tokens"))), "trained on"],
    ["wall time", duration(run.span.seconds), run.span.began || ""],
  ];
}

function losses(page) {
  const several = page.runs.length > 1;
  const series = (name, text, held) =>
    metricSeries(page, name).map((one) => ({
      ...one,
      label: several ? `${one.label}: ${text}` : text,
      colour: several ? one.colour : held ? 1 : 0,
      dashed: held,
    }));
  return section(
    "loss",
    "Loss",
    "Supervised fine-tuning: mean negative log-likelihood of the trained tokens of each batch (line) and of the held-out conversations (dashed).",
    lines({
      title: "Loss",
      unit: "nats a token",
      series: [...series("sft/nll", "batch", false), ...series("sft/held_out_nll", "held out", true)],
      height: 320,
      marks: marks(page),
    }),
    plots(page, ["optim/learning_rate_applied", "optim/grad_norm", "train/tokens_per_second"]),
  );
}

function rewardTiles(run) {
  const rewards = column(run, "reward/mean").filter((v) => v !== null);
  const held = column(run, "eval/reward_mean").filter((v) => v !== null);
  const trained = run.rows.filter((t) => t.kind === "training");
  const faults = run.rows.filter((t) => ["infrastructure_error", "verifier_error"].includes(t.outcome)).length;
  return [
    ["reward, last step", number(rewards.at(-1), 3), rewards.length ? first(rewards) : "no step yet"],
    ["held out, last", number(held.at(-1), 3), held.length ? first(held) : "no evaluation"],
    ["steps", number(column(run, "group/count").filter((v) => v !== null).length), run.resumed.length ? `resumed ${run.resumed.length} ×` : ""],
    ["trials", number(run.rows.length), `${number(trained.length)} for training`],
    ["faults", number(faults), share(faults, run.rows.length)],
    ["sampled tokens", number(sum(run.rows.map((t) => t.sampled_tokens))), ""],
    ["wall time", duration(run.span.seconds), run.span.began || ""],
  ];
}

function summary(page) {
  return page.runs.map((run) => {
    const tiles = tuned(run) ? tuningTiles(run) : rewardTiles(run);
    const config = run.config;
    const facts = [
      config.model_name,
      config.backend,
      config.tasks_dir || [config.data, config.runs].flat().filter(Boolean).join(", "),
      config.agent && `agent ${run.versions.agent || config.agent}`,
      config.loss_fn && `loss ${config.loss_fn}`,
      config.learning_rate && `learning rate ${config.learning_rate}`,
    ];
    const swatch = page.runs.length > 1 ? el("i", { class: `swatch c${run.index % 10}` }) : null;
    const shown = tiles.map(([name, value, more]) => div(el("span", {}, name), el("b", {}, value), el("small", {}, more)));
    return el(
      "section",
      { class: "summary" },
      el("h2", {}, swatch, run.name),
      soft(facts.filter(Boolean).join(" · ")),
      el("div", { class: "tiles" }, shown),
    );
  });
}

// Steps from which on a resumed run had other settings.
const marks = (page) =>
  page.runs.flatMap((run) =>
    run.changes.map((c) => ({
      at: c.step,
      text: label(page, run, `${c.field}: ${plain(c.before)} → ${plain(c.now)}`),
    })),
  );

const plain = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

function rewards(page) {
  const several = page.runs.length > 1;
  const training = page.runs
    .filter((run) => has(run, "reward/mean"))
    .map((run) => {
      const at = new Map(run.intervals.steps.map((step, i) => [step, i]));
      const bound = (name) =>
        run.metrics.steps.map((s, i) =>
          at.has(s) && column(run, "reward/mean")[i] !== null ? run.intervals[name][at.get(s)] : null,
        );
      return {
        label: label(page, run, "training batch"),
        colour: several ? run.index : 0,
        xs: run.metrics.steps,
        ys: column(run, "reward/mean"),
        low: bound("low"),
        high: bound("high"),
      };
    });
  const held = page.runs
    .filter((run) => has(run, "eval/reward_mean"))
    .map((run) => {
      const rows = run.metrics.steps.map((_, i) => i).filter((i) => column(run, "eval/reward_mean")[i] !== null);
      const pick = (name) => rows.map((i) => column(run, name)[i] ?? null);
      const means = pick("eval/reward_mean");
      const errors = pick("eval/reward_stderr");
      const bound = (name, sign) =>
        has(run, name) ? pick(name) : means.map((m, i) => (errors[i] === null ? null : m + sign * 1.96 * errors[i]));
      return {
        label: label(page, run, "held-out tasks"),
        colour: several ? run.index : 1,
        xs: rows.map((i) => run.metrics.steps[i]),
        ys: means,
        low: bound("eval/reward_low", -1),
        high: bound("eval/reward_high", 1),
        bars: true,
        dashed: true,
      };
    });
  const all = extent([...training, ...held].flatMap((s) => [...s.ys, ...s.low, ...s.high])) || [0, 1];
  const range = all[0] >= 0 && all[1] <= 1 ? [0, 1.02] : null;
  return section(
    "reward",
    "Reward",
    "Mean reward of each training batch (line) and of the held-out tasks (squares). Band and bars: 95% interval of the mean over tasks.",
    lines({ title: "Reward", unit: "reward", series: [...training, ...held], height: 320, range, marks: marks(page) }),
    plots(page, ["reward/best_of_group", "reward/std", "group/constant_fraction"]),
  );
}
