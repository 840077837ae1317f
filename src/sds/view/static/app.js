// The page of `sds view`. Its state is in the address, after the #: query, seed, epoch, position, rows on a page.
// Whatever comes from the dataset is put in as text, never as HTML.
const $ = (id) => document.getElementById(id);
const CAPTIONS = ["caption", "text", "prompt", "title", "description", "txt", "label", "class_name", "class"];
let state = { sql: "", seed: "", epoch: 0, at: 0, num: 24 };
let shown = null; // the page as it was answered, and what it was asked with: `state` may be ahead of it
let asking = null; // the request that is under way
let focused = 0; // the card that Tab reaches
let open = null; // the position of the sample that is open

const number = (value) => Number(value).toLocaleString("en-US");
const bytes = (value) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 999.5 && unit < 4; unit++) value /= 1000;
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
};
const words = (given) => new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined));
const of = (extra, { sql, seed, epoch } = shown?.asked || state) => words({ sql, seed, epoch, ...extra });
const cell = (path, row, column) => `${path}?${words({ view: shown.view, row: row.row, column })}`;

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function letGo(of) { // of the connections of what plays there
  for (const media of of.querySelectorAll("video, audio")) {
    media.removeAttribute("src");
    media.load();
  }
}

async function ask(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw { message: "the viewer does not answer", hint: "is `sds view` still running?" };
  }
  const value = await answer.json().catch(() => ({ error: { message: `the viewer answered ${answer.status}` } }));
  if (!answer.ok) throw value.error;
  return value;
}

// ---- the page of rows

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of ["sql", "seed"]) state[name] = given.get(name) || "";
  for (const name of ["epoch", "at"]) state[name] = Math.max(0, Math.trunc(Number(given.get(name)))) || 0;
  state.num = [...$("num").options].some((each) => each.value === given.get("num")) ? Number(given.get("num")) : 24;
}

function go(change) {
  const next = { ...state, ...change };
  const hash = `#${words(next)}`;
  if (hash === location.hash) reload();
  else location.hash = hash; // the browser's back button goes back through pages
}

async function load(focusOn = null) {
  read();
  $("sql").value = state.sql;
  $("seed").value = state.seed;
  $("epoch").value = state.epoch;
  $("num").value = String(state.num);
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  $("bar").hidden = false;
  $("grid").setAttribute("aria-busy", "true");
  $("status").textContent = "Reading…";
  try {
    const asked = { ...state };
    const page = await ask(`api/page?${of({ at: asked.at, num: asked.num }, asked)}`, mine.signal);
    fail(null);
    draw({ ...page, asked }, focusOn);
  } catch (error) {
    if (error.name === "AbortError") return;
    fail(error);
    $("status").textContent = "";
  } finally {
    if (asking === mine) {
      $("bar").hidden = true;
      $("grid").removeAttribute("aria-busy");
    }
  }
}

function fail(error) {
  $("error").hidden = !error;
  $("error").replaceChildren(...(error ? told(error) : []));
  $("sql").setAttribute("aria-invalid", String(error?.kind === "QueryError"));
}

const told = (error) => [error.message || String(error), error.hint ? make("span", { className: "hint" }, `hint: ${error.hint}`) : ""];

function draw(page, focusOn) {
  letGo($("grid"));
  shown = page;
  state.at = page.at;
  const last = Math.max(0, page.total - 1);
  $("at").value = page.at;
  $("at").max = $("slide").max = last;
  $("slide").step = 1;
  $("slide").value = page.at;
  $("first").disabled = $("previous").disabled = page.at === 0;
  $("next").disabled = $("last").disabled = page.at + page.rows.length >= page.total;
  for (const name of ["at", "slide", "check"]) $(name).disabled = !page.total;
  const { seed, epoch } = page.asked;
  const order = seed === "" ? "in the order of the index" : `shuffled by seed ${seed}, epoch ${epoch}`;
  const outOf = page.total && page.rows_at_source !== page.total ? ` of ${number(page.rows_at_source)}` : "";
  $("summary").textContent = `${number(page.total)}${outOf} rows, ${order}`;
  $("status").textContent = page.total ? `${number(page.at)} to ${number(page.at + page.rows.length - 1)} of ${number(page.total)}` : "no rows";
  $("empty").hidden = page.total > 0;
  const [what, query] = split(page.message || "");
  $("empty").replaceChildren(make("strong", {}, "No rows"), make("p", {}, what), make("code", {}, query), make("p", {}, "Loosen its conditions, or empty the box to see all rows."));
  $("grid").replaceChildren(...page.rows.map(card));
  focused = focusOn === "last" ? page.rows.length - 1 : 0;
  mark();
  if (focusOn !== null) focusCard(focused);
}

const split = (message) => [message.split(": ")[0], message.split(": ").slice(1).join(": ")];

function card(row, place) {
  const files = Object.entries(row.files);
  const file = files.find(([, kind]) => kind !== "text" && kind !== "file") || files.find(([, kind]) => kind === "file");
  const tile = file ? make("div", { className: `tile ${file[1]}` }, thumb(row, ...file)) : null;
  const caption = make("div", { className: "caption" });
  const named = captionOf(row);
  if (named && !isFile(row, named)) caption.textContent = brief(row.values[named], 2000);
  const others = Object.entries(row.values).filter(([name, value]) => name !== named && !isFile(row, name) && value !== null && value !== row.key);
  const facts = file
    ? make("div", { className: "facts" }, others.slice(0, 4).map(([name, value]) => `${name} ${brief(value)}`).join(" · "))
    : table(others.slice(0, 8).map(([name, value]) => [name, brief(value, 80)]));
  const where = file && ["cached", "remote"].includes(row.places[file[0]]) ? make("span", { className: `pill ${row.places[file[0]]}` }, row.places[file[0]]) : null;
  const line = make("div", { className: "line" }, make("span", {}, `#${number(row.position)}`), make("span", { className: "key" }, row.key), where);
  const button = make("button", { type: "button", className: "open", tabIndex: -1 }, tile, make("div", { className: "words" }, caption, facts, line));
  const name = () => button.setAttribute("aria-label", `Position ${row.position}, ${row.key}. ${caption.textContent}`);
  if (named && isFile(row, named)) readText(row, named, caption).then(name);
  name();
  button.addEventListener("click", () => show(row.position));
  button.addEventListener("focus", () => { focused = place; mark(); play(button, true); });
  button.addEventListener("blur", () => play(button, false));
  button.addEventListener("mouseenter", () => play(button, true));
  button.addEventListener("mouseleave", () => play(button, false));
  const sound = file && file[1] === "audio" ? make("audio", { controls: true, controlslist: "nodownload noplaybackrate", preload: "metadata", src: cell("file", row, file[0]) }) : null;
  if (sound) sound.setAttribute("aria-label", `Sound of ${row.key}`);
  return make("li", { className: "card" }, button, sound);
}

const isFile = (row, name) => Object.hasOwn(row.files, name); // a column may be called "constructor"

function captionOf(row) {
  const names = Object.keys(row.values).filter((name) => row.values[name] !== null && (!isFile(row, name) || row.files[name] === "text"));
  return CAPTIONS.find((name) => names.includes(name)) || names.find((name) => isFile(row, name)) ||
    names.find((name) => typeof row.values[name] === "string" && row.values[name] !== row.key) || null;
}

const brief = (value, most = 24) => {
  const text = value !== null && typeof value === "object" ? JSON.stringify(value) : typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(5))) : String(value);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
};

async function readText(row, column, into) {
  try {
    into.textContent = (await ask(cell("text", row, column))).text.trim();
  } catch (error) {
    into.textContent = error.message;
  }
}

function thumb(row, column, kind) {
  if (kind === "image") return picture(cell("thumb", row, column), `${column} of ${row.key}`);
  if (kind === "video") return clip(row, column, false);
  const sign = make("span", { className: "sign", "aria-hidden": "true" }, kind === "audio" ? "♪" : "▤");
  if (kind !== "audio") return sign;
  const wave = make("img", { alt: `Loudness of ${row.key}`, decoding: "async" });
  wave.addEventListener("error", () => wave.replaceWith(sign)); // broken, or the extra is not installed: its player says so
  wave.src = cell("thumb", row, column);
  return wave;
}

function picture(url, alt, className = "", instead = null) {
  const image = make("img", { alt, className, loading: "eager", decoding: "async" });
  image.addEventListener("error", async () => {
    if (instead) { // drawn by the viewer, where the browser cannot
      image.replaceWith(picture(instead, alt, className));
      return;
    }
    const reason = await ask(url).then(() => ({ message: "the browser cannot show it" }), (error) => error);
    image.replaceWith(make("div", { className: "bad" }, reason.message));
  });
  image.src = url;
  return image;
}

function clip(row, column, controls) {
  const video = make("video", { preload: controls ? "metadata" : "none", poster: cell("thumb", row, column), muted: !controls, loop: !controls, playsInline: true, controls, src: cell("file", row, column) });
  const giveUp = () => {
    if (!video.getAttribute("src") || video.dataset.failed) return;
    video.dataset.failed = "1";
    const note = make("div", { className: controls ? "what" : "bad" }, "This browser cannot play this codec; the first frame is shown.");
    if (controls) video.after(note);
    else video.replaceWith(picture(cell("thumb", row, column), `First frame of ${row.key}`));
  };
  video.addEventListener("error", giveUp);
  video.addEventListener("loadedmetadata", () => { if (!video.videoWidth) giveUp(); }); // its sound can be played, its pictures cannot
  return video;
}

function play(button, on) {
  const video = button.querySelector("video");
  if (!video) return;
  if (on && !matchMedia("(prefers-reduced-motion: reduce)").matches) video.play().catch(() => {});
  if (!on) video.pause();
}

// ---- moving about

const cards = () => [...$("grid").querySelectorAll(".open")];
const mark = () => cards().forEach((button, place) => (button.tabIndex = place === focused ? 0 : -1));
const focusCard = (place) => cards()[place]?.focus();

function turn(pages, focusOn = null) {
  if (!shown || !shown.total) return;
  const at = Math.min(Math.max(0, shown.at + pages * state.num), Math.max(0, shown.total - 1));
  if (at === shown.at) return;
  pending = focusOn;
  go({ at });
}
let pending = null; // which card is to have the focus when the next page is there

function acrossCount() {
  const all = cards();
  const top = all[0]?.getBoundingClientRect().top;
  const down = all.findIndex((button) => button.getBoundingClientRect().top > top + 1);
  return down < 0 ? all.length : down;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches("input, textarea, select, video, audio");
  if ($("sample").open) {
    if (!isTyping && event.key === "ArrowRight") show(open + 1);
    if (!isTyping && event.key === "ArrowLeft") show(open - 1);
    return;
  }
  if (isTyping || $("panel").open) return;
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: acrossCount(), ArrowUp: -acrossCount() };
  if (event.key in moves) {
    const isOnCard = document.activeElement?.classList.contains("open");
    const to = isOnCard ? focused + moves[event.key] : focused;
    if (to < 0) turn(-1, "last");
    else if (to >= cards().length) turn(1, "first");
    else focusCard(to);
  } else if (event.key === "PageDown") turn(1, "first");
  else if (event.key === "PageUp") turn(-1, "first");
  else if (event.key === "Home") { pending = "first"; go({ at: 0 }); }
  else if (event.key === "End" && shown) { pending = "first"; go({ at: lastPage() }); }
  else if (event.key === "/") $("sql").focus();
  else return;
  event.preventDefault();
});

const lastPage = () => Math.floor((shown.total - 1) / state.num) * state.num;

$("query").addEventListener("submit", (event) => {
  event.preventDefault();
  go({ sql: $("sql").value.trim(), seed: $("seed").value.trim(), epoch: $("epoch").value || 0, at: $("sql").value.trim() === state.sql ? state.at : 0 });
});
$("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("query").requestSubmit(); }
  if (event.key === "Escape") $("sql").blur();
});
$("first").addEventListener("click", () => go({ at: 0 }));
$("previous").addEventListener("click", () => turn(-1));
$("next").addEventListener("click", () => turn(1));
$("last").addEventListener("click", () => go({ at: lastPage() }));
$("at").addEventListener("change", () => go({ at: Math.max(0, Math.trunc(Number($("at").value))) || 0 }));
$("slide").addEventListener("input", () => ($("at").value = $("slide").value));
$("slide").addEventListener("change", () => go({ at: Number($("slide").value) }));
$("num").addEventListener("change", () => go({ num: Number($("num").value) }));

// ---- one sample

async function show(position) {
  if (!shown || position < 0 || position >= shown.total) return;
  open = position;
  $("sample-title").textContent = `Position ${number(position)}`;
  letGo($("sample"));
  $("made").replaceChildren("Making it…");
  if (!$("sample").open) {
    $("row").replaceChildren();
    $("sample").showModal();
  }
  let sample;
  try {
    sample = await ask(`api/sample?${of({ at: position })}`);
  } catch (error) {
    sample = { error };
  }
  if (open !== position) return; // another was asked for meanwhile, or it was closed
  if (!sample.values) {
    $("row").replaceChildren();
    $("made").replaceChildren(make("div", { className: "problem" }, ...told(sample.error)));
    return;
  }
  const { seed } = shown.asked;
  const order = seed === "" ? "" : `, epoch ${sample.epoch}`;
  $("sample-title").textContent = `Position ${number(position)}${order} · row ${number(sample.row)} · ${sample.key}`;
  $("sample-previous").disabled = position === 0;
  $("sample-next").disabled = position + 1 >= shown.total;
  const media = Object.entries(sample.files).map(([column, kind]) => large(sample, column, kind));
  const later = sample.comes_at.filter((each) => each.position !== null && seed !== "").map((each) => `epoch ${each.epoch}: ${number(each.position)}`);
  const values = Object.entries(sample.values).map(([name, value]) => [name, value !== null && typeof value === "object" ? JSON.stringify(value, null, 1) : sample.places[name] === "local" ? path(value) : String(value)]);
  if (later.length) values.push(["comes at position", later.join("\n")]);
  if (sample.copy) values.push(["copy", String(sample.copy)]);
  $("row").replaceChildren(...media, table(values));
  if (sample.error) {
    $("made").replaceChildren(make("div", { className: "problem" }, ...told(sample.error)));
    count();
    return;
  }
  const many = sample.outputs.length > 1;
  const made = sample.outputs.flatMap((parts, item) => [...(many ? [make("h3", {}, `${item + 1} of ${sample.outputs.length}`)] : []), ...outputs(sample, parts, item)]);
  $("made").replaceChildren(...(made.length ? made : ["The transforms dropped this sample."]));
}

// the end of a long path; the rest is there for who points at it
const path = (value) => make("span", { title: value }, value.split("/").length > 4 ? `…/${value.split("/").slice(-2).join("/")}` : value);

function large(sample, column, kind) {
  const what = make("div", { className: "what" }, make("b", {}, column), ` ${kind}, ${sample.places[column]}`);
  const box = make("div", { className: "media" }, what);
  if (kind === "image") box.append(picture(cell("file", sample, column), `${column} of ${sample.key}`, "", cell("thumb", sample, column)));
  if (kind === "video") box.append(clip(sample, column, true));
  if (kind === "audio") box.append(make("audio", { controls: true, preload: "metadata", src: cell("file", sample, column) }));
  if (kind === "text") {
    const text = make("div", {});
    box.append(text);
    readText(sample, column, text);
  }
  return box;
}

function outputs(sample, parts, item) {
  const media = [];
  const rest = [];
  parts.forEach((part, place) => {
    if (!part.is_drawn) {
      rest.push([part.name, part.text]);
      return;
    }
    const url = `output?${words({ view: sample.view, epoch: sample.epoch, at: sample.position, item, part: place })}`;
    const what = make("div", { className: "what" }, make("b", {}, part.name), ` ${part.text}`);
    const thing = part.kind === "audio" ? make("audio", { controls: true, preload: "metadata", src: url }) : picture(url, part.name, part.kind === "tensor" ? "pixels" : "");
    media.push(make("div", { className: "media" }, what, thing));
  });
  return [...media, ...(rest.length ? [table(rest)] : [])];
}

function table(lines) {
  return make("table", {}, make("tbody", {}, ...lines.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)))));
}

$("sample-previous").addEventListener("click", () => show(open - 1));
$("sample-next").addEventListener("click", () => show(open + 1));
$("sample").addEventListener("close", () => {
  letGo($("sample"));
  const place = shown ? shown.rows.findIndex((row) => row.position === open) : -1;
  open = null;
  if (place >= 0) focusCard(place);
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

// ---- about, cache, failures

async function panel(title, fill) {
  $("panel-title").textContent = title;
  $("panel-body").replaceChildren(make("p", {}, "Reading…"));
  $("panel").showModal();
  try {
    $("panel-body").replaceChildren(...(await fill()));
  } catch (error) {
    $("panel-body").replaceChildren(make("div", { className: "problem" }, ...told(error)));
  }
}

$("about").addEventListener("click", () => panel("About this dataset", async () => {
  const about = await ask(`api/about?${of({})}`);
  const chain = about.transforms.length ? about.transforms.join("\n") : "none (--transforms or --data-type)";
  return [make("pre", {}, about.explain), table([["transforms", chain], ...about.columns.map((column) => [column.name, column.type])])];
}));
$("cache").addEventListener("click", () => panel("Cache", async () => {
  const cache = await ask(`api/cache?${of({})}`);
  const facts = [["folder", cache.path], ["holds", `${number(cache.files)} files, ${bytes(cache.bytes)}`], ["limit of this viewer", cache.limit === null ? "none" : bytes(cache.limit)], ["policy", cache.policy],
    ["since the viewer began", `${number(cache.hits)} hits, ${number(cache.misses)} misses, ${bytes(cache.bytes_downloaded)} downloaded`]];
  if (shown) {
    const places = shown.rows.flatMap((row) => Object.values(row.places));
    const counts = ["cached", "remote", "local", "inside"].map((place) => [place, places.filter((each) => each === place).length]).filter(([, many]) => many);
    facts.push(["files of this page", counts.map(([place, many]) => `${many} ${place === "inside" ? "inside the source" : place}`).join(", ") || "none"]);
  }
  return [table(facts)];
}));
$("failures").addEventListener("click", () => panel("Rows that failed", async () => {
  const { total, failures } = await ask(`api/failures?${of({})}`);
  if (!total) return [make("p", {}, "None so far. Rows are tried when they are looked at; “Check page” tries all of a page.")];
  const more = total > failures.length ? [make("p", {}, `The first ${number(failures.length)} of ${number(total)}.`)] : [];
  return [...more, make("table", {}, make("tbody", {}, ...failures.map((each) => {
    const button = make("button", { type: "button" }, `row ${number(each.row)}`);
    button.addEventListener("click", async () => {
      try {
        const { position } = await ask(`api/place?${of({ row: each.row, key: each.key })}`);
        $("panel").close();
        show(position);
      } catch (error) {
        button.replaceWith(error.message);
      }
    });
    return make("tr", {}, make("th", { scope: "row" }, button), make("td", {}, `${each.key}\n${each.stage}: ${each.reason}`));
  })))];
}));

async function count() {
  const { total } = await ask(`api/failures?${of({})}`).catch(() => ({ total: 0 }));
  $("num-failures").hidden = !total;
  $("num-failures").textContent = number(total);
}

$("check").addEventListener("click", async () => {
  const page = shown;
  $("check").disabled = true;
  let failed = 0;
  for (const [place, row] of page.rows.entries()) {
    if (page !== shown) break; // another page is shown
    $("status").textContent = `Checking ${place + 1} of ${page.rows.length}…`;
    const sample = await ask(`api/sample?${of({ at: row.position }, page.asked)}`).catch((error) => ({ error }));
    failed += Boolean(sample.error);
    const line = cards()[place]?.querySelector(".line");
    line?.querySelector(".fine, .failed")?.remove();
    line?.append(make("span", { className: `pill ${sample.error ? "failed" : "fine"}`, title: sample.error?.message || "" }, sample.error ? "failed" : "fine"));
  }
  $("check").disabled = false;
  if (page === shown) $("status").textContent = `${page.rows.length - failed} fine, ${failed} failed`;
  count();
});

// ---- the beginning

function reload() {
  const focusOn = pending;
  pending = null;
  load(focusOn);
}
addEventListener("hashchange", reload);

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // what stands after the # is the state of the page
  if (cards().length) focusCard(focused);
  else $("grid").focus();
});

(async () => {
  if (!location.hash) {
    const start = await ask("api/start").catch(() => ({}));
    history.replaceState(null, "", `#${words({ ...state, ...start })}`);
  }
  await load();
  const about = await ask(`api/about?${of({})}`).catch(() => null);
  if (about) {
    $("name").textContent = about.source.replace(/\/+$/, "").split("/").pop() || about.source;
    $("name").title = about.source;
    document.title = `${$("name").textContent} · sds view`;
  }
  count();
})();
