// How old the turns were that a step trained on: of one run.
const AGE = "off_policy/turns_by_age/";

// Shares of the turns of each step by their age; colours from fresh to old.
function ages(page, run) {
  const found = Object.keys(run.metrics.values)
    .filter((name) => name.startsWith(AGE))
    .map((name) => Number(name.slice(AGE.length)))
    .sort((a, b) => a - b);
  if (!found.length) return null;
  const steps = run.metrics.steps;
  const turns = (age, i) => column(run, `${AGE}${age}`)[i] || 0;
  const all = steps.map((_, i) => sum(found.map((age) => turns(age, i))));
  const layers = found.map((age) => ({
    label: `${age} ${age === 1 ? "step" : "steps"} old`,
    colour: age,
    ys: steps.map((_, i) => (all[i] ? (100 * turns(age, i)) / all[i] : 0)),
  }));
  return div(
    stacks({ title: "Age of the turns that a step trained on", unit: "% of turns", xs: steps, layers }),
    plots(page, ["off_policy/staleness_mean", "off_policy/ratio_p99", "off_policy/effective_sample_size"]),
  );
}
