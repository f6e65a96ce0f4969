// One trial: facts, conversation, verifier, tokens. Its panel is unpacked when it is opened.
const link = (run, trial, file) =>
  `${run.root}rollouts/${encodeURIComponent(trial.folder)}/${encodeURIComponent(trial.name)}/${file}`;

async function openTrial(run, trial, neighbours = []) {
  const dialog = el("dialog", { class: "trial", "aria-label": trial.name });
  const leave = () => dialog.close();
  const at = neighbours.indexOf(trial);
  const step = (by) => {
    const next = neighbours[at + by];
    const click = () => {
      leave();
      openTrial(run, next, neighbours);
    };
    return el("button", { type: "button", disabled: !next, click }, by < 0 ? "‹ before" : "next ›");
  };
  const buttons = at < 0 ? [] : [step(-1), step(1)];
  const close = el("button", { type: "button", click: leave, "aria-label": "close" }, "✕");
  dialog.append(el("header", {}, el("h2", {}, trial.name), buttons, close), trialFacts(run, trial));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && leave());
  document.body.append(dialog);
  dialog.showModal();
  const index = run.panels[trial.index];
  if (index === undefined) {
    const row = "This trial is one of those that the page holds as a row only; its files are linked above. ";
    dialog.append(soft(row, "panels=N on the command line shows more trials in full."));
    return;
  }
  const terminal = el("section");
  const rest = el("div");
  dialog.append(terminal, rest);
  const texts = served() ? [] : await unpack("panel0");
  const screen = replay();
  let before = "";
  const show = async () => {
    const shown = await unpack(`panel${index}`);
    const now = JSON.stringify(shown);
    if (now === before) return;
    before = now;
    Object.assign(trial, shown.row || {});
    dialog.querySelector(".trial-facts").replaceChildren(...trialFacts(run, trial).children);
    dialog.querySelector(".files").append(...shown.files.flatMap((file) => [" · ", fileLink(run, trial, file, file)]));
    terminal.replaceChildren(screen(shown.messages, trial.outcome === "running"));
    rest.replaceChildren(
      ...shown.notes.map((note) => el("p", { class: "warn" }, note)),
      shaping(shown.shaping || {}),
      conversation(shown.messages, texts),
      verifier(shown),
      tokens(trial, shown.tokens),
    );
  };
  await show();
  if (served() && trial.outcome === "running") whileOpen(dialog, () => trial.outcome === "running", show);
}

function trialFacts(run, trial) {
  const facts = [
    ["task", trial.task],
    ["agent", trial.agent],
    ["outcome", words(trial.outcome)],
    ["cause", trial.cause],
    ["ended in", words(trial.stage)],
    ["reward", number(trial.reward)],
    ["advantage", number(trial.advantage)],
    ["training", trial.use],
    ["fate", trial.fate],
    ["attempt", number(trial.attempt)],
    ["turns", number(trial.turns)],
    ["sampled tokens", number(trial.sampled_tokens)],
    ["prompt tokens", number(trial.prompt_tokens)],
    ["time", duration(trial.seconds)],
  ].filter(([, value]) => value && value !== "–");
  const list = facts.map(([name, value]) => div(el("dt", {}, name), el("dd", {}, String(value))));
  const files = el("p", { class: "files" }, "Harbor's files: ", fileLink(run, trial, "", "folder"));
  return el("div", { class: "trial-facts" }, el("dl", {}, list), files);
}

const fileLink = (run, trial, file, name) =>
  el("a", { href: link(run, trial, file), target: "_blank", rel: "noreferrer" }, name);

function conversation(messages, texts) {
  const shown = messages.map((message, i) => {
    const text = typeof message.text === "number" ? texts[message.text] : message.text;
    const parts = [
      message.thought ? folded("reasoning", el("pre", {}, message.thought)) : null,
      text ? (message.role === "agent" || text.length < 1500 ? el("pre", {}, text) : prompt(text)) : null,
      (message.calls || []).map((call) => el("pre", { class: "keys", title: "keystrokes or call" }, call)),
      message.saw ? el("pre", { class: "screen", title: "what the agent saw" }, message.saw) : null,
    ];
    const head = el("h4", {}, `${i + 1} · ${message.role}${message.about ? ` · ${message.about}` : ""}`);
    return el("section", { class: `message ${message.role.split(" ")[0]}` }, head, parts);
  });
  const said = shown.length ? shown : soft("Harbor left no trajectory.json.");
  return el("section", {}, el("h3", {}, "Conversation and terminal"), said);
}

// Of a long prompt what is about the task; all of it when it is opened.
function prompt(text) {
  const task = text.indexOf("Task Description:");
  const part = task < 0 ? text.slice(0, 600) : text.slice(task, task + 1500);
  return [
    el("pre", {}, `${task > 0 ? "… " : ""}${part}`),
    folded(`all ${number(text.length)} characters`, el("pre", {}, text)),
  ];
}

// What a judge added to the reward of training; the grade is above, and nothing is added to it.
function shaping(added) {
  const names = Object.keys(added);
  if (!names.length) return "";
  const facts = names.map((name) => div(el("dt", {}, name), el("dd", {}, number(added[name]))));
  return el("section", {}, el("h3", {}, "Added in training"), el("dl", {}, facts));
}

function verifier(shown) {
  const parts = Object.entries(shown.verifier).map(([name, text]) => [el("h4", {}, name), el("pre", {}, text)]);
  if (shown.error) parts.push([el("h4", {}, "exception.txt"), el("pre", {}, shown.error)]);
  return el("section", {}, el("h3", {}, "Verifier"), parts.length ? parts : soft("It left no output."));
}

const RATIO_FULL = Math.log(1.2); // where PPO clips

function tokens(trial, shown) {
  if (!shown || !shown.turns.length)
    return el("section", {}, el("h3", {}, "Tokens"), soft("None are stored."));
  const box = el("div", { class: "tokens", "data-by": "logprob" });
  const by = chooser(
    "colour by",
    [
      ["logprob", "logprob of the sampled"],
      ["mask", "who wrote it"],
      ["advantage", "advantage"],
      ...(shown.turns.some((turn) => turn.ratios.length) ? [["ratio", "ratio trainer / sampler"]] : []),
    ],
    (value) => {
      box.dataset.by = value;
    },
  );
  const sign = trial.advantage === null ? "none" : trial.advantage > 0 ? "up" : trial.advantage < 0 ? "down" : "none";
  box.dataset.sign = sign;
  shown.turns.forEach((turn, i) => {
    const seen = turn.seen.map((word, k) => {
      const role = ["template", "harness", "environment", "user"][turn.roles[k]] || "seen";
      return el(
        "span",
        { class: "seen", title: `id ${shown.ids[word]}, ${role}`, "data-role": role },
        visible(shown.words[word]),
      );
    });
    const sampled = turn.sampled.map((word, k) => {
      const logprob = turn.logprobs[k];
      const ratio = turn.ratios[k];
      const about = ratio === undefined ? "" : `, trainer / sampler ${number(ratio, 5)}`;
      const node = el(
        "span",
        {
          class: "sampled",
          title: `id ${shown.ids[word]}, logprob ${number(logprob)}, probability ${number(Math.exp(logprob), 3)}, advantage ${number(trial.advantage)}${about}`,
          "data-ratio": ratio === undefined ? null : ratio < 1 ? "below" : "above",
        },
        visible(shown.words[word]),
      );
      node.style.setProperty("--surprise", `${Math.round(Math.min(-logprob / 4, 1) * 85)}%`);
      if (ratio !== undefined)
        node.style.setProperty("--ratio", `${Math.round(Math.min(Math.abs(Math.log(ratio)) / RATIO_FULL, 1) * 85)}%`);
      return node;
    });
    const about = `turn ${i + 1}: ${turn.seen.length} seen, ${turn.sampled.length} sampled in ${number(turn.seconds)} s, logprob ${number(sum(turn.logprobs))} in all, weights ${turn.weights}${turn.segment ? `, segment ${turn.segment}` : ""}${turn.truncated ? ", cut off by max_tokens" : ""}`;
    box.append(
      el("h4", {}, about),
      sum(turn.seen.map((word) => shown.words[word].length)) > 1500
        ? folded(`${turn.seen.length} tokens of prompt`, el("p", {}, seen))
        : el("p", {}, seen),
      el("p", {}, sampled),
    );
  });
  const notes = [
    shown.named ? "" : "This machine does not have the model's tokenizer: ids instead of texts. ",
    shown.left_out ? `${number(shown.left_out)} tokens of later turns are left out. ` : "",
    "The stronger the colour, the less likely the token was (logprob −4 and less: full). Probabilities are the sampler's. ",
    "Ratio: one colour where the trainer finds the token likelier than the sampler did, another where less; full at 1.2 and 0.83. In a batch's first optimizer step both have the same weights, so it should be 1.",
  ];
  return el("section", {}, el("h3", {}, "Tokens"), by, soft(notes), box);
}

const visible = (text) =>
  text
    .replace(/\n+/g, (run) => (run.length > 3 ? `⏎×${run.length}\n` : "⏎\n".repeat(run.length)))
    .replaceAll("\t", "⇥");
