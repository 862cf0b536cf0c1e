// Live curves of a run, and verification of certificates.
"use strict";

const POLL = 2000; // milliseconds between two looks at a run that is not finished
const root = document.documentElement.dataset.root;
const byId = (id) => document.getElementById(id);

async function asked(path, values) {
  const answer = await fetch(`${root}${path}?${new URLSearchParams(values)}`, {
    headers: { accept: "application/json" },
  });
  if (answer.status === 204) return null;
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// --- one run ----------------------------------------------------------------------------------

let refuted = false; // the certificate does not verify: no epsilon of this run is shown

function draw(charts) {
  const place = byId("charts");
  const figures = charts.filter((chart) => !(chart.proven && refuted)).map(({ title, note, svg }) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const words = document.createElement("span");
    caption.textContent = `${title} `;
    words.className = "soft small";
    words.textContent = note;
    caption.append(words);
    figure.append(caption, new DOMParser().parseFromString(svg, "text/html").body.firstElementChild);
    return figure;
  });
  if (!figures.length) {
    const nothing = document.createElement("p");
    nothing.textContent = "No round has been done yet.";
    figures.push(nothing);
  }
  place.replaceChildren(...figures);
}

let drawn = [];

async function follow(run) {
  let seen = "";
  for (;;) {
    let now = null;
    try {
      now = await asked("/runs/live", { run, seen });
    } catch (error) {
      byId("status").textContent = error.message || "The studio does not answer.";
      await new Promise((done) => setTimeout(done, 5 * POLL));
      continue;
    }
    if (now) {
      seen = now.version;
      byId("status").textContent = "";
      byId("state").textContent = now.state;
      byId("state").className = `state ${now.state.split(" ")[0]}`;
      byId("rounds").textContent = now.rounds;
      byId("spent").textContent = refuted ? "not proven" : now.spent ?? "none";
      drawn = now.charts;
      draw(now.charts);
      if (now.state === "finished") return;
    }
    await new Promise((done) => setTimeout(done, POLL));
  }
}

const live = document.querySelector("[data-live]");
if (live) follow(live.dataset.live);

// --- verification: a number that does not verify is not shown ------------------------------------

const REFUTED = "does not verify";

function judge(number, verdict) {
  number.classList.toggle("stated", verdict !== "consistent");
  if (verdict === REFUTED) number.textContent = "not proven";
}

const button = byId("verify");

async function verifyRun() {
  button.disabled = true;
  byId("verdict").textContent = "Checking: every number is computed again…";
  try {
    const { verdict, text, open } = await asked("/runs/verify", { run: button.dataset.run });
    byId("verdict").textContent = `${verdict[0].toUpperCase()}${verdict.slice(1)}. ${text}`;
    byId("verdict").classList.toggle("bad", verdict === REFUTED);
    byId("stated").hidden = verdict === REFUTED;
    byId("stated").classList.toggle("stated", verdict !== "consistent");
    judge(byId("epsilon"), verdict);
    refuted = verdict === REFUTED;
    if (refuted) {
      byId("spent").textContent = "not proven";
      if (drawn.length) draw(drawn);
    }
    byId("open").replaceChildren(...open.map((line) => {
      const item = document.createElement("li");
      item.textContent = `not checked: ${line}`;
      return item;
    }));
    byId("open").hidden = !open.length;
  } catch (error) {
    byId("verdict").textContent = error.message;
  }
  button.disabled = false;
}

button?.addEventListener("click", verifyRun);
if (button && "quick" in button.dataset) verifyRun();

(async () => {
  for (const cell of document.querySelectorAll("[data-verify]")) {
    try {
      const { verdict, text } = await asked("/runs/verify", { run: cell.dataset.verify });
      cell.textContent = verdict;
      cell.title = text;
      cell.classList.toggle("bad", verdict === REFUTED);
      judge(cell.closest("tr").querySelector("td.stated"), verdict);
    } catch {
      cell.textContent = "not checked";
    }
  }
})();
