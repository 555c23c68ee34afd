"use strict";
// Text reaches the page as text nodes alone, never as markup.

const PAUSE = 600; // Milliseconds without a key before the answer is renewed.
const CALLED = 0.5; // From here on the discriminator calls a word replaced.
const $ = (id) => document.getElementById(id);
const percent = (share) => (share < 0.005 ? "<1%" : Math.round(100 * share) + "%");
let about = null; // What /api/model says.
let game = null; // The last word that was replaced for the reader.

/** Returns an element; children are elements or text. */
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "share") made.style.setProperty("--share", value);
    else if (key === "onclick") made.addEventListener("click", value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

async function ask(path, content) {
  const body = content && JSON.stringify(content);
  if (body && new Blob([body]).size > about.limits.bytes) throw new Error("This is too much text; send less.");
  let response;
  try {
    response = await fetch(path, body && { method: "POST", headers: { "Content-Type": "application/json" }, body });
  } catch {
    throw new Error("No answer: has the command ended? Start it again and repeat.");
  }
  const answer = await response.json().catch(() => ({ error: "HTTP " + response.status }));
  if (!response.ok) throw new Error(answer.error || "HTTP " + response.status);
  return answer;
}

/** A panel: its form, one request at a time, and what it shows meanwhile. */
class Panel {
  constructor(name, read, show) {
    this.section = $(name);
    Object.assign(this, { name, read, show, answered: false, isBusy: false, isWaiting: false, timer: 0 });
    this.form = this.section.querySelector("form");
    this.status = this.section.querySelector(".status");
    this.error = this.section.querySelector(".error");
    this.result = this.section.querySelector(".result");
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    this.form.addEventListener("input", (event) => { if (!event.isComposing) this.soon(); });
    this.form.addEventListener("compositionend", () => this.soon());
    this.form.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target.rows === 2);
      if (sends && !event.shiftKey && !event.isComposing && event.target.matches("textarea")) {
        event.preventDefault();
        this.run();
      }
    });
  }

  soon() {
    this.result.classList.add("stale");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), PAUSE);
  }

  /** Asks for what the form holds now; if a request is on its way, after it. */
  async run() {
    clearTimeout(this.timer);
    if (this.isBusy) { this.isWaiting = true; return; }
    this.isBusy = true;
    this.fail("");
    this.say(this.answered ? "Computing …" : "Compiling for the first answer: seconds, of large models minutes …", true);
    const compiling = setTimeout(() => this.say("Compiling: texts of a new length take longer the first time …", true), 2500);
    const begin = performance.now();
    this.section.setAttribute("aria-busy", "true");
    try {
      const found = await ask("/api/" + this.name, this.read(this.form.elements));
      this.result.replaceChildren(...this.show(found));
      this.answered = true;
      this.say(((performance.now() - begin) / 1000).toFixed(2) + " s");
    } catch (error) {
      this.result.replaceChildren();
      this.say("");
      this.fail(error.message);
    }
    clearTimeout(compiling);
    this.section.removeAttribute("aria-busy");
    this.result.classList.remove("stale");
    this.isBusy = false;
    if (this.isWaiting) { this.isWaiting = false; await this.run(); }
  }

  say(text, isBusy = false) {
    this.status.textContent = text;
    this.status.classList.toggle("busy", isBusy);
  }

  fail(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }

  /** Shows why the model cannot do this, in place of the form. */
  disable(reason) {
    this.form.hidden = true;
    this.say("");
    this.result.replaceChildren(element("p", { class: "note" }, "Not available: " + reason + "."));
  }
}

// ---- Odd word out

function showDetection(found) {
  if (!found.words.length) return [element("p", {}, "No words.")];
  const most = found.words.reduce((one, other) => (other.probability > one.probability ? other : one));
  const called = found.words.filter((word) => word.probability >= CALLED);
  const words = element("div", { class: "words", dir: found.direction });
  for (const word of found.words) {
    if (word.before.trim()) words.append(element("span", { class: "gap" }, word.before));
    const isOdd = word.probability >= CALLED;
    words.append(element(
      "span",
      {
        class: isOdd ? "word odd" : "word",
        share: word.probability,
        title: word.tokens.map((one) => one.token + " " + percent(one.probability)).join("\n"),
      },
      element("bdi", {}, word.text),
      element("small", {}, percent(word.probability), isOdd ? element("span", { class: "hidden" }, " replaced?") : ""),
    ));
  }
  if (found.after.trim()) words.append(element("span", { class: "gap" }, found.after));
  const verdict = element(
    "p",
    { class: "verdict" },
    called.length > 1
      ? called.length + " words look replaced, most of all "
      : called.length ? "Looks replaced: " : "No word looks replaced. The most likely one is ",
    element("strong", {}, element("bdi", {}, most.text)),
    " (" + percent(most.probability) + ").",
  );
  return [verdict, ...revealed(called), words];
}

/**
 * Plays the training game: masks a word, and puts one in its place that the generator thinks of.
 *
 * Played again, it begins with the sentence as it was typed.
 */
async function swap() {
  const box = $("detect-text");
  const typed = game && game.text === box.value ? game.typed : box.value;
  const words = typed.split(/\s+/).filter(Boolean);
  if (!words.length) return detect.run();
  const place = Math.floor(Math.random() * words.length);
  const at = (word) => words.map((old, index) => (index === place ? word : old)).join(" ");
  $("swap").disabled = true;
  detect.fail("");
  detect.say("Asking the generator …", true);
  try {
    const found = await ask("/api/fill", { text: at(about.mask), k: 10 });
    const others = found.predictions[0].filter((one) => one.begins_word && one.text && one.text !== words[place]);
    if (!others.length) throw new Error("The generator has no other word for “" + words[place] + "”.");
    const put = others[Math.floor(Math.random() * others.length)].text;
    box.value = at(put);
    game = { typed, text: box.value, old: words[place], put };
    await detect.run();
  } catch (error) {
    detect.say("");
    detect.fail(error.message);
  }
  $("swap").disabled = false;
}

/** Says which word was replaced, and whether it was found. */
function revealed(called) {
  if (!game || game.text !== $("detect-text").value) return [];
  const isFound = called.some((word) => word.text === game.put);
  const said = [" in place of ", element("bdi", {}, game.old), isFound ? ": found." : ": missed."];
  return [element("p", { class: "verdict" }, "The generator put ", element("bdi", {}, game.put), ...said)];
}

// ---- Fill the gap

function showFillings(found) {
  const sentence = element("p", { class: "filled", dir: found.direction });
  found.parts.forEach((part, index) => {
    sentence.append(element("bdi", {}, part));
    if (index < found.predictions.length) {
      sentence.append(element("bdi", { class: "slot" }, found.predictions[index][0].text || "▁"));
    }
  });
  const masks = element("div", { class: "masks" });
  found.predictions.forEach((tokens, index) => {
    const list = element("ol", { "aria-label": "Predictions for gap " + (index + 1) });
    for (const one of tokens) {
      const text = (one.begins_word ? "" : "…") + (one.text || "▁");
      const label = "Put " + text + " in gap " + (index + 1) + ", " + percent(one.probability);
      list.append(element("li", {}, element(
        "button",
        { type: "button", share: one.probability, "aria-label": label, onclick: () => put(index, one.text) },
        element("bdi", {}, text),
        element("small", {}, percent(one.probability)),
      )));
    }
    masks.append(list);
  });
  return [sentence, masks];
}

/** Replaces a mask of the sentence by a token. */
function put(index, text) {
  const parts = $("fill-text").value.split(about.mask);
  if (index + 1 >= parts.length) return;
  parts.splice(index, 2, parts[index] + text + parts[index + 1]);
  $("fill-text").value = parts.join(about.mask);
  $("fill-text").focus();
  if (parts.length > 1) fill.run();
}

// ---- Find the translation

const layerOf = (fields) => Number(fields.layer.value);
const linesOf = (box) => box.value.split("\n").filter((line) => line.trim());

function showMatches(found) {
  const list = element("ol", { class: "matches" });
  const queries = linesOf($("queries")), candidates = linesOf($("candidates"));
  found.matches.forEach((matches, index) => {
    const nearest = element("ol", { "aria-label": "Nearest, the best first" });
    matches.forEach((match, rank) => {
      const text = found.candidates[match.candidate];
      const row = element("li", {}, element("bdi", {}, text), element("small", {}, match.score.toFixed(2)));
      if (!rank) {
        const label = "Align " + found.queries[index] + " with " + text;
        const pair = [queries[index], candidates[match.candidate]];
        row.append(element("button", { type: "button", class: "second", "aria-label": label, onclick: () => choose(...pair) }, "Align"));
      }
      nearest.append(row);
    });
    list.append(element("li", {}, element("bdi", {}, found.queries[index]), nearest));
  });
  const note = "The number is CSLS: the cosine of the two, twice, less the mean cosines with their neighbours. Higher is nearer.";
  return [list, element("p", { class: "note" }, note)];
}

/** Aligns a pair of the list. */
function choose(source, target) {
  $("source").value = source;
  $("target").value = target;
  $("align").scrollIntoView({ block: "start" });
  $("source").focus({ preventScroll: true });
  align.run();
}

// ---- Which word is which

function showAlignment(found) {
  const isLinked = (i, j) => found.links.some(([one, other]) => one === i && other === j);
  const head = element("tr", {}, element("td", { class: "corner" }));
  for (const word of found.target) head.append(element("th", { scope: "col" }, element("bdi", {}, word)));
  const body = element("tbody", {});
  found.source.forEach((word, i) => {
    const row = element("tr", {}, element("th", { scope: "row" }, element("bdi", {}, word)));
    found.matrix[i].forEach((share, j) => {
      const linked = isLinked(i, j);
      row.append(element(
        "td",
        { share, class: linked ? "linked" : null, title: word + " – " + found.target[j] + ": " + percent(share) },
        linked ? "●" : "",
        element("span", { class: "hidden" }, (linked ? "linked, " : "") + percent(share)),
      ));
    });
    body.append(row);
  });
  const size = found.target.length > 6 ? "heat long" : "heat";
  const caption = element("caption", { class: "hidden" }, "Strength of links between words");
  const table = element("table", { class: size }, caption, element("thead", {}, head), body);
  const links = element("p", {}, found.links.length ? "Linked: " : "No words are linked.");
  found.links.forEach(([i, j], index) => {
    links.append(index ? ", " : "", element("bdi", {}, found.source[i]), " – ", element("bdi", {}, found.target[j]));
  });
  const wide = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Alignment matrix" }, table);
  return [links, wide];
}

// ---- Start

const detect = new Panel("detect", (fields) => ({ text: fields.text.value }), showDetection);
const fill = new Panel("fill", (fields) => ({ text: fields.text.value }), showFillings);
const retrieve = new Panel(
  "retrieve",
  (fields) => ({ queries: linesOf(fields.queries), candidates: linesOf(fields.candidates), layer: layerOf(fields) }),
  showMatches,
);
const align = new Panel(
  "align",
  (fields) => ({ source: fields.source.value, target: fields.target.value, layer: layerOf(fields) }),
  showAlignment,
);

function prefill() {
  const { pairs, odd, masked, languages } = about.examples;
  $("detect-text").value = odd;
  $("fill-text").value = masked;
  $("queries").value = pairs.map((pair) => pair[0]).join("\n");
  $("candidates").value = pairs.map((pair) => pair[1]).sort().join("\n");
  [$("source").value, $("target").value] = pairs[0];
  for (const select of document.querySelectorAll("select[name=layer]")) {
    for (let layer = 0; layer <= about.layers; layer++) {
      select.append(element("option", { value: layer }, layer ? String(layer) : "0 (embeddings)"));
    }
    select.value = about.layer;
  }
  for (const name of ["retrieve", "align"]) {
    const [one, other] = $(name).querySelectorAll(".language");
    one.textContent += " (" + languages[0] + ")";
    other.textContent = " (" + languages[1] + ")";
  }
}

async function start() {
  try {
    about = await ask("/api/model");
  } catch (error) {
    $("about").textContent = error.message;
    return;
  }
  $("about").textContent =
    about.system + ", " + about.layers + " layers, " + about.checkpoint +
    ". Examples: " + about.examples.origin + ". Nothing leaves this machine.";
  prefill();
  $("mask").addEventListener("click", () => {
    const box = $("fill-text");
    box.setRangeText(about.mask, box.selectionStart, box.selectionEnd, "end");
    box.focus();
    fill.soon();
  });
  $("swap").addEventListener("click", swap);
  if (about.unavailable.fill) $("swap").hidden = true;
  const panels = [detect, fill, retrieve, align];
  for (const panel of panels) {
    const reason = about.unavailable[panel.name];
    if (reason) panel.disable(reason);
    else await panel.run();
  }
}

start();
