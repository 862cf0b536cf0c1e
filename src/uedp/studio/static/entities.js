// The Entities page: dialogs, forms that do not leave the page, and numbers that follow the work in the background.
"use strict";

const root = document.documentElement.dataset.root + "/entities";
const dialog = document.getElementById("dialog");
const status = document.getElementById("status");
const selectionButton = document.getElementById("protect-selection");
let opener = null;
let polling = false;

function say(text) {
  status.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { status.textContent = ""; }, 6000);
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The studio does not answer. Is it still running in the terminal?");
  }
  if (!answer.ok) {
    const text = await answer.text();
    let message = "This did not work (" + answer.status + ").";
    try { message = JSON.parse(text).error || message; } catch { /* a page, not JSON */ }
    throw new Error(message);
  }
  return answer;
}

function part(name) {
  const query = new URLSearchParams(location.search);
  query.set("part", name);
  return root + "?" + query;
}

// Replaces the content of an element, and keeps the focus and what is unfolded.
async function refresh(id) {
  const html = await (await ask(part(id))).text();
  const box = document.getElementById(id);
  const open = [...box.querySelectorAll("details")].map((each) => each.open);
  const focused = box.contains(document.activeElement) ? place(document.activeElement, box) : null;
  box.innerHTML = html; // escaped by the server
  box.querySelectorAll("details").forEach((each, number) => { each.open = each.open || Boolean(open[number]); });
  if (focused) (box.querySelector(focused) || box.querySelector("[tabindex], button, a"))?.focus();
}

function place(element, box) {
  if (element.id) return "#" + CSS.escape(element.id);
  const form = element.closest("form");
  if (form && box.contains(form)) return `form[action="${CSS.escape(form.getAttribute("action"))}"] button`;
  const { sentence, index, part: name } = element.dataset;
  if (sentence) return `[data-part="${name}"][data-sentence="${sentence}"]` + (index ? `[data-index="${index}"]` : "");
  return "[data-nothing]";
}

async function follow() {
  if (polling) return;
  polling = true;
  let worked = false;
  try {
    for (;;) {
      const state = await (await ask(root + "/state")).json();
      const shown = document.getElementById("panel-state");
      if (String(state.version) !== shown.dataset.version) {
        await refresh("panel");
        await refresh("results");
      }
      const bar = document.getElementById("progress");
      if (bar) {
        bar.value = state.part;
        document.getElementById("stage").textContent = state.stage;
      }
      if (!state.busy && String(state.version) === document.getElementById("panel-state").dataset.version) {
        if (worked && !state.error) say("A round can use " + document.getElementById("usable").textContent.trim() + " of the sentences.");
        break;
      }
      worked = worked || state.busy;
      await new Promise((done) => setTimeout(done, 300));
    }
  } catch (error) {
    say(error.message);
  } finally {
    polling = false;
  }
}

async function show(button, text = "") {
  const { part: name, sentence = "", index = "", entity = "" } = button.dataset;
  opener = button.id ? "#" + button.id : place(button, document);
  try {
    const query = new URLSearchParams({ sentence, index, entity, text });
    dialog.innerHTML = await (await ask(`${root}/${name}?${query}`)).text(); // escaped by the server
    dialog.showModal();
    (dialog.querySelector("#entry") || dialog.querySelector("#dialog-title")).focus();
  } catch (error) {
    say(error.message);
  }
}

async function submit(form) {
  const buttons = form.querySelectorAll("button");
  buttons.forEach((each) => { each.disabled = true; });
  try {
    await ask(form.getAttribute("action"), {
      method: "POST",
      headers: { Accept: "application/json" },
      body: new URLSearchParams(new FormData(form)),
    });
    if (dialog.open) dialog.close();
    await follow(); // reads the list as well, even if the work is done by now
  } catch (error) {
    say(error.message);
  } finally {
    buttons.forEach((each) => { each.disabled = false; });
  }
}

function selected() {
  const selection = getSelection();
  const text = selection.toString().trim();
  const sentence = selection.anchorNode?.parentElement?.closest("[data-sentence] .text")?.closest("[data-sentence]");
  const same = selection.focusNode?.parentElement?.closest("[data-sentence]") === sentence;
  return text && sentence && same && text.length <= 400 ? { text, sentence: sentence.dataset.sentence } : null;
}

document.addEventListener("selectionchange", () => {
  const found = dialog.open ? null : selected();
  selectionButton.hidden = !found;
  if (found) {
    selectionButton.dataset.part = "miss";
    selectionButton.dataset.sentence = found.sentence;
    selectionButton.dataset.text = found.text;
  }
});
// pressing the button must not clear the selection first
selectionButton.addEventListener("mousedown", (event) => event.preventDefault());

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button === selectionButton) show(button, button.dataset.text);
  else if (button.classList.contains("open")) show(button);
  else if (button.classList.contains("close")) dialog.close();
  else if (button.classList.contains("copy")) {
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
      say("Press Ctrl-C to copy.");
    }
  }
});

document.addEventListener("submit", (event) => {
  if (!event.target.classList.contains("ajax")) return;
  event.preventDefault();
  submit(event.target);
});

dialog.addEventListener("close", () => {
  dialog.replaceChildren();
  if (opener) document.querySelector(opener)?.focus();
});

if (document.getElementById("panel-state").dataset.busy === "1") follow();
