// The tables of tasks, of what their rewards came from, and of trials.
const withoutTrials = (task) => ({ task, trials: 0, faults: 0, tokens: 0, seconds: [], kinds: new Set(), rewards: new Map() });

function taskRows(run) {
  const tasks = new Map();
  for (const trial of run.rows) {
    if (!tasks.has(trial.task)) tasks.set(trial.task, withoutTrials(trial.task));
    const row = tasks.get(trial.task);
    row.trials += 1;
    row.kinds.add(trial.kind);
    row.tokens += trial.sampled_tokens;
    row.seconds.push(trial.seconds);
    row.faults += ["infrastructure_error", "verifier_error"].includes(trial.outcome);
    if (trial.reward === null) continue;
    if (!row.rewards.has(trial.step)) row.rewards.set(trial.step, []);
    row.rewards.get(trial.step).push(trial.reward);
  }
  for (const row of tasks.values()) {
    row.history = [...row.rewards.entries()].sort((a, b) => a[0] - b[0]).map(([step, values]) => [step, mean(values)]);
    row.kind = [...row.kinds].sort().join(", ");
    row.mean = mean([...row.rewards.values()].flat());
    row.first = row.history.length ? row.history[0][1] : null;
    row.last = row.history.length ? row.history.at(-1)[1] : null;
    row.signal = [...row.rewards.values()].filter((values) => new Set(values).size > 1).length;
  }
  return [...tasks.values()];
}

function tasksTable(run, choose) {
  const rows = taskRows(run);
  const [low, high] = extent(rows.flatMap((r) => r.history.map(([, v]) => v))) || [0, 1];
  return table({
    rows,
    sort: ["task", false],
    place: "filter tasks",
    choices: ["kind"],
    open: (row) => choose(row.task),
    columns: [
      { key: "task", label: "task", text: true },
      { key: "kind", label: "used for", text: true },
      { key: "trials", label: "trials" },
      { key: "mean", label: "reward, mean" },
      { key: "first", label: "first", title: "mean of its first batch" },
      { key: "last", label: "last", title: "mean of its last batch" },
      {
        key: "history",
        label: "by step",
        title: "mean reward of each batch it was in; sorted by the change",
        get: (r) => (r.last === null ? null : r.last - r.first),
        show: (r) => {
          const values = r.history.map(([, v]) => v);
          const title = r.history.map(([s, v]) => `${s}: ${number(v, 3)}`).join("\n");
          return el("span", { title }, spark(values, [Math.min(low, 0), Math.max(high, 1)]));
        },
      },
      { key: "signal", label: "batches with signal", title: "batches in which its rewards differed" },
      { key: "faults", label: "faults" },
      { key: "tokens", label: "sampled tokens" },
      { key: "seconds", label: "s a trial", get: (r) => mean(r.seconds) },
    ],
  });
}

function sourcesTable(run) {
  const names = (row) => {
    const all = [...row.names, row.more && `and ${number(row.more)} more`].filter(Boolean).map((name) => div(name));
    return all.length > 4 ? folded(`${row.names[0]} and ${number(row.names.length + row.more - 1)} more`, all) : all;
  };
  return table({
    rows: run.sources,
    sort: ["first", true],
    place: "filter by task, file, service",
    columns: [
      { key: "task", label: "task", text: true },
      { key: "names", label: "files and services", text: true, long: true, get: (r) => r.names.join(" "), show: names },
      { key: "share", label: "rewarded trials", get: (r) => r.trials / r.rewarded, show: (r) => `${r.trials} of ${r.rewarded}` },
      { key: "first", label: "new at step", title: "the first step with a rewarded trial that depended on it" },
      { key: "spread", label: "spread at step", title: "half of the newest 8 rewards came from it, and hardly one before" },
    ],
  });
}

function trialsTable(run) {
  const rows = run.rows;
  for (const row of rows) row.details = run.panels[row.index] === undefined ? "row only" : "in full";
  const text = (key, label) => ({ key, label, text: true, show: (t) => words(String(t[key])) });
  const count = (key, label, title) => ({ key, label, title });
  return table({
    rows,
    sort: ["step", true],
    place: "filter by trial, task, cause",
    choices: ["kind", "outcome", "use", "details"],
    open: (row, found) => openTrial(run, row, found),
    columns: [
      { key: "name", label: "trial", text: true },
      { key: "task", label: "task", text: true },
      count("step", "step"),
      text("kind", "kind"),
      count("reward", "reward"),
      count("advantage", "advantage"),
      text("outcome", "outcome"),
      text("use", "training"),
      ...(rows.some((t) => t.host) ? [text("host", "host")] : []),
      count("turns", "turns"),
      count("sampled_tokens", "sampled", "sampled tokens"),
      count("seconds", "s", "seconds, without waiting for a place"),
      count("attempt", "attempt"),
      { key: "cause", label: "cause", text: true, long: true },
      text("details", "shown"),
    ],
  });
}
