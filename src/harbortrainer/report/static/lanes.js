// What sampler and trainer did at the same time, and how old the turns were that a step trained on: of one run.
const TRIAL_KINDS = [["training", "trials of steps", 0], ["evaluation", "trials of evaluations", 3]];
const TRAINER_BARS = [["update", 1], ["publish", 2]];

// Above, trials under way; below, the trainer's updates. `lane`: one window of the run, from report/lanes.py.
function drawLanes(lane) {
  const height = 190;
  const trainerTop = height - MARGIN.bottom - 30;
  return (width) => {
    const shown = TRIAL_KINDS.filter(([kind]) => lane.trials[kind].some((v) => v));
    const tops = lane.trials.training.map((v, i) => v + lane.trials.evaluation[i]);
    const plot = axes(width, height, [0, lane.seconds], [0, 1], "seconds", "sampler: trials under way", false);
    plot.root.querySelectorAll(".grid, .grid + text").forEach((node) => node.remove());
    const most = Math.max(...tops, 1);
    const y = linear([0, most], [trainerTop - 22, MARGIN.top]);
    for (const value of [0, most]) {
      plot.root.append(svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, 3)));
    }
    const wide = (plot.right - MARGIN.left) / tops.length;
    const base = tops.map(() => 0);
    for (const [kind, , colour] of shown) {
      let d = "";
      lane.trials[kind].forEach((value, i) => {
        if (value) {
          const [top, bottom] = [y(base[i] + value), y(base[i])];
          d += `M${(MARGIN.left + i * wide).toFixed(1)},${bottom.toFixed(1)}V${top.toFixed(1)}h${(wide + 0.4).toFixed(2)}V${bottom.toFixed(1)}Z`;
        }
        base[i] += value;
      });
      plot.root.append(svg("path", { class: `bar c${colour}`, d }));
    }
    plot.root.append(svg("text", { class: "unit", x: 4, y: trainerTop - 6 }, "trainer"));
    for (const [kind, begin, length, step] of lane.bars) {
      const [name, colour] = TRAINER_BARS[kind];
      const box = svg("rect", {
        class: `bar c${colour}`,
        x: plot.x(begin),
        y: trainerTop,
        height: 24,
        width: Math.max(plot.x(begin + length) - plot.x(begin), 0.7),
      });
      const which = step ? ` of step ${step}` : "";
      box.append(svg("title", {}, `${name}${which}: ${number(begin)} s + ${number(length)} s`));
      plot.root.append(box);
    }
    return plot.root;
  };
}

function laneSection(run) {
  if (!run.lanes.length) return null;
  const place = el("div");
  const show = (index) => {
    const lane = run.lanes[index];
    const evaluates = lane.trials.evaluation.some((v) => v);
    const keys = [...TRIAL_KINDS.filter(([kind]) => kind === "training" || evaluates).map(([, text, c]) => [text, c]), ...TRAINER_BARS];
    const of = (seconds) => share(seconds, lane.seconds);
    const note = `trials under way ${of(lane.sampling)} of the time, update or publish ${of(lane.training)}, both ${of(lane.both)}`;
    place.replaceChildren(figure("Sampler and trainer", keys, drawLanes(lane), note));
  };
  const choices = run.lanes.map((lane, index) => [index, lane.label]);
  const list = chooser("time of", choices, show);
  show(0);
  return div(run.lanes.length > 1 ? list : null, place);
}

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
