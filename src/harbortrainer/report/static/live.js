// A page that `watch` serves: it draws itself again when a run has gone on, and keeps what was opened and chosen.
const EVERY_MS = 2000;

// Trials under way, the newest first.
function underWay(page) {
  const running = page.runs.flatMap((run) =>
    run.rows.filter((trial) => trial.outcome === "running").map((trial) => [run, trial]),
  );
  const open = ([run, trial]) =>
    el("button", { type: "button", click: () => openTrial(run, trial) }, label(page, run, `${trial.task} · ${trial.name}`));
  const about = "A click shows its terminal as it goes.";
  const shown = running.length ? div(running.reverse().slice(0, 64).map(open)) : soft("None.");
  return section("now", `Trials under way: ${number(running.length)}`, about, shown);
}

// What was opened, chosen and typed; the function returned does it again.
function memory() {
  const root = document.getElementById("page");
  const names = (node) => node.querySelector("summary").textContent;
  const opened = new Map([...root.querySelectorAll("details")].map((node) => [names(node), node.open]));
  const values = [...root.querySelectorAll("input, select")].map((node) => node.value);
  const at = window.scrollY;
  return () => {
    for (const node of root.querySelectorAll("details")) node.open = opened.get(names(node)) ?? node.open;
    values.forEach((value, i) => {
      const node = root.querySelectorAll("input, select")[i];
      if (!node || node.value === value) return;
      node.value = value;
      node.dispatchEvent(new Event(node.tagName === "SELECT" ? "change" : "input"));
    });
    window.scrollTo(0, at);
  };
}

const busy = () => document.querySelector("dialog") || ["INPUT", "SELECT"].includes(document.activeElement?.tagName);

async function follow(draw) {
  let known = null;
  for (;;) {
    await new Promise((go) => setTimeout(go, EVERY_MS));
    if (busy()) continue;
    try {
      const answer = await fetch("data", { cache: "no-cache" });
      const name = answer.headers.get("ETag");
      if (name === known) continue;
      const page = await answer.json();
      if (busy()) continue;
      const again = memory();
      draw(page);
      again();
      known = name;
      document.title = document.title.replace(/^⚠ /, "");
    } catch {
      document.title = `⚠ ${document.title.replace(/^⚠ /, "")}`; // the command has ended
    }
  }
}

// `show` again and again, until the dialog is closed or the trial is over.
async function whileOpen(dialog, going, show) {
  while (dialog.isConnected && going()) {
    await new Promise((go) => setTimeout(go, EVERY_MS));
    if (dialog.isConnected) await show().catch(() => {});
  }
}
