// A trial's terminal in time: the keys as they were typed, then the screen that they led to.
const TYPING = 1; // seconds before a screen in which its keys are typed, at most
const LINES = 40;
const HEADS = /^(?:Current terminal state:\n)?(?:New Terminal Output:\n|Current Terminal Screen:\n)?/;

// Turns with the second at which each ended; a screen of new output goes on below the one before.
function turnsOf(messages) {
  const turns = [];
  let screen = "";
  let began = 0;
  for (const { at, calls, saw } of messages) {
    if (at === undefined) continue;
    if (saw || calls) {
      const text = (saw || "").replace(HEADS, "").replace(/\n+\[… \d+ blank lines …\]\n*/g, "\n").trimEnd();
      const whole = (saw || "").includes("Current Terminal Screen:") ? text : `${screen}\n${text}`;
      screen = whole.split("\n").slice(-LINES).join("\n").trimStart();
      turns.push({ began, at, keys: (calls || []).filter((call) => !/^\S+ \{/.test(call)).join(""), screen });
    }
    began = at;
  }
  return turns;
}

// A function that draws the terminal, and again when there is more of it, at the place where it was.
function replay() {
  let [turns, at, playing, end] = [[], null, false, 0];
  const screen = el("pre", { class: "screen" });
  const typed = el("pre", { class: "keys" });
  const clock = el("span", { class: "soft" });
  const speed = chooser("speed", [["1", "as it was"], ["5", "5 ×"], ["20", "20 ×"]], () => {});
  const slider = el("input", {
    type: "range", min: 0, step: 0.1, "aria-label": "second of the trial",
    input: () => go(Number(slider.value)),
  });
  const button = el("button", { type: "button", click: () => play(!playing) }, "▶ play");

  function go(second) {
    at = Math.min(second, end);
    const next = turns.findIndex((turn) => turn.at > at);
    const last = next < 0 ? turns.at(-1) : turns[next - 1];
    const turn = next < 0 ? null : turns[next];
    const length = turn ? Math.min(TYPING, (turn.at - turn.began) / 2) : 1;
    const part = turn ? Math.max(0, 1 - (turn.at - at) / length) : 0;
    screen.textContent = last ? last.screen : "";
    typed.textContent = turn ? [...turn.keys].slice(0, Math.ceil(part * turn.keys.length)).join("") : "";
    const count = next < 0 ? turns.length : next;
    clock.textContent = `${number(at, 3)} of ${number(end, 3)} s · after turn ${count} of ${turns.length}`;
    slider.value = String(at);
  }

  function play(start) {
    playing = start;
    button.textContent = playing ? "❚❚ pause" : "▶ play";
    if (!playing) return;
    if (at >= end) go(0);
    let before = performance.now();
    const tick = () => {
      if (!playing || !screen.isConnected) return;
      const now = performance.now();
      go(at + ((now - before) / 1000) * Number(speed.querySelector("select").value || 1));
      before = now;
      if (at >= end) play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  const bar = el("div", { class: "bar-of-table" }, button, slider, speed, clock);
  const node = el("div", { class: "replay" }, el("h3", {}, "Terminal"), bar, screen, typed);
  return (messages, running) => {
    const newest = at === null || at >= end;
    turns = turnsOf(messages);
    if (!turns.length) return running ? soft("It has not typed anything yet.") : "";
    end = turns.at(-1).at;
    slider.setAttribute("max", end);
    go(newest && !playing ? end : at);
    return node;
  };
}
