// Knobs to numbers: asks the accountant, shows its answers as they come, and drops stale ones.
"use strict";

const WAIT = 150; // milliseconds without a change, before the accountant is asked
const STEPS = 1000; // of a slider
const root = document.documentElement.dataset.root;
const form = document.getElementById("knobs");
const byId = (id) => document.getElementById(id);
const knobs = [...document.querySelectorAll("[data-knob]")].map((box) => ({
  name: box.dataset.knob,
  low: Number(box.dataset.low),
  high: Number(box.dataset.high),
  log: "log" in box.dataset,
  whole: "whole" in box.dataset,
  slider: box.querySelector("[type=range]"),
  number: box.querySelector("[type=number]"),
}));

let asked = null; // the request whose answer is shown
let timer = 0;
let pinned = null; // the signal that others are compared with
let signal = null;

// --- sliders and numbers: the number is what counts ------------------------------------------

function valueAt(knob, place) {
  const share = place / STEPS;
  const value = knob.log
    ? knob.low * (knob.high / knob.low) ** share
    : knob.low + (knob.high - knob.low) * share;
  return knob.whole ? Math.round(value) : Number(value.toPrecision(3));
}

function placeOf(knob, value) {
  const share = knob.log
    ? Math.log(value / knob.low) / Math.log(knob.high / knob.low)
    : (value - knob.low) / (knob.high - knob.low);
  return Math.round(STEPS * Math.min(1, Math.max(0, share))) || 0;
}

function showOnSlider(knob) {
  knob.slider.value = placeOf(knob, Number(knob.number.value));
  knob.slider.setAttribute("aria-valuetext", knob.number.value);
}

function moved(knob, back) {
  // one step of a slider of whole numbers may round to the number that was there
  const before = Number(knob.number.value);
  let value = valueAt(knob, Number(knob.slider.value));
  if (knob.whole && value === before && Number(knob.slider.value) !== back) {
    value += Number(knob.slider.value) > back ? 1 : -1;
    value = Math.min(knob.high, Math.max(knob.low, value));
  }
  knob.number.value = value;
  knob.slider.setAttribute("aria-valuetext", String(value));
}

function enable() {
  const hold = byId("hold").checked;
  const entities = byId("method").value !== "user-level";
  for (const knob of knobs) {
    const off = knob.name === "noise" ? hold : knob.name === "target" ? !hold
      : knob.name === "entity_share" && !entities;
    knob.slider.disabled = knob.number.disabled = off;
  }
  byId("method-words").textContent = byId("method").selectedOptions[0].dataset.words;
}

// --- asking -----------------------------------------------------------------------------------

function changed() {
  for (const shown of document.querySelectorAll("[data-unit], [data-brief], [data-chart], [data-command]")) {
    shown.classList.add("stale");
  }
  for (const id of ["meaning", "estimate", "signal"]) byId(id).classList.add("stale");
  byId("results").setAttribute("aria-busy", "true");
  if (asked) asked.abort();
  clearTimeout(timer);
  timer = setTimeout(ask, WAIT);
}

async function ask() {
  const request = (asked = new AbortController());
  const values = new URLSearchParams();
  for (const name of ["method", "pace", "seconds"]) if (byId(name)) values.set(name, byId(name).value);
  for (const knob of knobs) values.set(knob.name, knob.number.value);
  if (!byId("hold").checked) values.delete("target");
  try {
    const answer = await fetch(`${root}/budget/epsilons?${values}`, {
      signal: request.signal,
      headers: { accept: "application/json" },
    });
    if (!answer.ok) throw new Error((await answer.json()).error);
    await eachLine(answer.body, (message) => {
      if (asked === request) show[message.kind](message);
    });
  } catch (error) {
    if (asked === request && error.name !== "AbortError") {
      show.refused({ text: error.message || "The studio does not answer. Is it still running?" });
    }
  }
}

async function eachLine(body, use) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) use(JSON.parse(line));
  }
}

// --- showing ----------------------------------------------------------------------------------

const paragraphs = (texts) => texts.map((text) => {
  const one = document.createElement("p");
  one.textContent = text;
  return one;
});

const show = {
  refused({ text }) {
    byId("refused").textContent = text;
    byId("refused").hidden = false;
    byId("numbers").hidden = true;
    for (const brief of document.querySelectorAll("[data-brief] b")) brief.textContent = "refused";
    for (const figure of document.querySelectorAll("[data-chart]")) {
      figure.querySelector(".drawing").replaceChildren();
      figure.querySelector(".progress").textContent = "";
    }
    for (const box of document.querySelectorAll("[data-command]")) command(box, "");
    byId("estimate").replaceChildren();
    byId("signal").hidden = byId("pin").hidden = true;
    byId("spoken").textContent = text;
    byId("results").removeAttribute("aria-busy");
  },
  noise({ value }) {
    const knob = knobs.find((one) => one.name === "noise");
    knob.number.value = value;
    showOnSlider(knob);
  },
  number({ unit, text, success }) {
    byId("refused").hidden = true;
    byId("numbers").hidden = false;
    const row = document.querySelector(`[data-unit="${unit}"]`);
    row.querySelector(".epsilon").textContent = text;
    row.querySelector(".success").textContent = success;
    row.classList.remove("stale");
    const brief = document.querySelector(`[data-brief="${unit}"] b`);
    if (brief) brief.textContent = text;
    brief?.parentElement.classList.remove("stale");
  },
  meaning({ text }) {
    byId("meaning").replaceChildren(...paragraphs(text));
    byId("meaning").classList.remove("stale");
  },
  commands(texts) {
    for (const box of document.querySelectorAll("[data-command]")) {
      command(box, texts[box.dataset.command]);
    }
  },
  estimate(message) {
    const parts = message.facts.flatMap(({ name, value, note }) => {
      const term = document.createElement("dt");
      const words = document.createElement("dd");
      term.textContent = name;
      words.textContent = note ? `${value} (${note})` : value;
      return [term, words];
    });
    if (message.total) {
      const term = document.createElement("dt");
      const words = document.createElement("dd");
      term.textContent = "All runs on this corpus";
      words.textContent = message.total;
      parts.push(term, words);
    }
    byId("estimate").replaceChildren(...parts);
    byId("estimate").classList.remove("stale");
    signal = message.signal ?? null;
    compare();
  },
  chart({ name, svg, done, of }) {
    const figure = document.querySelector(`[data-chart="${name}"]`);
    const drawn = new DOMParser().parseFromString(svg, "text/html").body.firstElementChild;
    figure.querySelector(".drawing").replaceChildren(drawn);
    figure.querySelector(".progress").textContent =
      done < of ? `(computing: ${done} of ${of} points)` : "";
    figure.classList.remove("stale");
  },
  numbered() {
    const rows = [...document.querySelectorAll("[data-unit]")];
    const words = rows.map((row) =>
      `${row.querySelector("th").textContent}: ${row.querySelector(".epsilon").textContent}`);
    byId("spoken").textContent = `Epsilon. ${words.join(". ")}.`;
    byId("results").removeAttribute("aria-busy");
  },
  done() {},
};

function command(box, text) {
  box.querySelector("code").textContent = text || "…";
  box.querySelector("button").disabled = !text;
  box.classList.toggle("stale", !text);
}

function compare() {
  byId("signal").hidden = byId("pin").hidden = signal === null;
  byId("signal").classList.remove("stale");
  if (signal === null) return;
  if (pinned === null) pinned = signal;
  byId("signal").textContent =
    `Signal: ${(signal / pinned).toPrecision(3)} times that of the settings you compare with. ` +
    "The planner ranks settings by this predicted signal-to-noise ratio of the whole run; by " +
    "itself its size means nothing.";
}

// --- wiring -----------------------------------------------------------------------------------

for (const knob of knobs) {
  showOnSlider(knob);
  let back = Number(knob.slider.value);
  knob.slider.addEventListener("input", () => {
    moved(knob, back);
    back = Number(knob.slider.value);
    changed();
  });
  knob.number.addEventListener("input", () => {
    showOnSlider(knob);
    back = Number(knob.slider.value);
    changed();
  });
}
byId("seconds").addEventListener("input", changed);
for (const name of ["method", "hold", "pace"]) {
  byId(name)?.addEventListener("change", () => {
    enable();
    changed();
  });
}
byId("pin").addEventListener("click", () => {
  pinned = signal;
  compare();
});
form.addEventListener("submit", (event) => event.preventDefault());
for (const box of document.querySelectorAll("[data-command]")) {
  const button = box.querySelector("button");
  const words = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box.querySelector("code"));
      button.textContent = "Selected: copy it with the keyboard";
    }
    setTimeout(() => (button.textContent = words), 2000);
  });
}
enable();
changed();
