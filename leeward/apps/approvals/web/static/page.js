// Adds keys, live updates, notifications and countdowns to the page, which works without this script.
//
// The script writes no part of a request as HTML, except what the server has rendered and escaped.
"use strict";

(() => {
  const root = document.documentElement;
  const csrf = document.querySelector("meta[name=csrf]").content;
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const policy = window.trustedTypes ? trustedTypes.createPolicy("leeward", { createHTML: (text) => text }) : { createHTML: (text) => text };
  const title = document.title.replace(/^\(\d+\) /, "");
  let shownAt = performance.now();
  let isDeciding = false;
  root.classList.add("scripted");

  const say = (text) => { one("#live").textContent = text; };
  const article = () => one("#detail article.request");

  function fragment(text) {
    const holder = document.createElement("template"); // what is in it runs no script
    holder.innerHTML = policy.createHTML(text);
    return holder.content;
  }

  async function fetched(path) {
    const answer = await fetch(path, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.assign("/login"); throw new Error("logged out"); }
    if (!answer.ok) throw new Error(String(answer.status));
    return fragment(await answer.text());
  }

  // --- counts, title, countdowns

  function count(number) {
    const shown = one("#pending-count");
    shown.textContent = number;
    shown.hidden = !number;
    document.title = (number ? `(${number}) ` : "") + title;
  }

  function units(seconds) {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
    return `${Math.max(0, Math.floor(seconds))} s`;
  }

  function tick() {
    const now = Date.now() / 1000;
    for (const each of all(".countdown")) {
      const left = Math.max(0, each.dataset.until - now);
      const minutes = Math.floor(left / 60), seconds = Math.floor(left % 60);
      one(".left", each).textContent = minutes ? `${minutes}m${String(seconds).padStart(2, "0")}s` : `${seconds}s`;
      const part = left / Math.max(1, each.dataset.until - each.dataset.from);
      one(".bar", each).style.setProperty("--left", `${Math.round(100 * Math.min(1, part))}%`);
    }
    for (const each of all(".held")) {
      const left = each.dataset.until - now;
      one(".left", each).textContent = Math.max(0, Math.round(left));
      if (left <= 0) { each.remove(); refreshList(); }
    }
    for (const each of all("time.age")) each.textContent = units(now - each.dataset.at);
  }

  // --- the list and the request beside it

  let listTimer = 0, isListStale = false;
  function refreshList() {
    // Many messages in succession cause one refresh each 150 ms. One that comes while the list is fetched causes another.
    isListStale = true;
    if (listTimer) return;
    listTimer = setTimeout(async () => {
      isListStale = false;
      try { await (one("#list") ? drawList() : drawCount()); } catch (error) { /* the next message tries again */ }
      listTimer = 0;
      if (isListStale) refreshList();
    }, 150);
  }

  async function drawCount() {
    count((await (await fetch("/api/status")).json()).pending);
  }

  // While a button is pressed the list stays, since a click on what is replaced meanwhile is lost.
  let isPressed = false;
  const released = () => new Promise((resolve) => {
    if (!isPressed) { resolve(); return; }
    const over = () => { clearTimeout(longest); setTimeout(resolve); }; // after the click
    const longest = setTimeout(over, 2000); // it was let go outside of the window
    for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, over, { once: true });
  });
  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { isPressed = false; });

  // A selector of what has the focus in the list, for the list that is drawn in its place; "" for nothing in it.
  function focused() {
    const on = document.activeElement, row = on && on.closest("#rows li"), form = on && on.closest("#bulk form");
    if (row) return `#rows li[data-id="${CSS.escape(row.dataset.id)}"] a`;
    if (form) return `#bulk form[data-bulk="${CSS.escape(form.dataset.bulk)}"] button[value="${CSS.escape(on.value)}"]`;
    return on && on.closest("#bulk") ? "#bulk summary" : "";
  }

  let isBulkOpen = false; // also while there is nothing to decide, as one list may be drawn
  let decisions = 0; // of this page
  async function drawList() {
    const query = one("#list").dataset.query, before = decisions;
    const drawn = await fetched(`/queue?${query}part=list`);
    await released();
    if (before !== decisions) { isListStale = true; return; } // it may have what was decided meanwhile
    const held = focused();
    const chosen = wantedId || (article() && article().dataset.id);
    if (one("#bulk")) isBulkOpen = one("#bulk").open;
    count(Number(one("[data-pending]", drawn).dataset.pending));
    one("#list").replaceChildren(drawn);
    if (one("#bulk")) one("#bulk").open = isBulkOpen;
    mark(chosen);
    if (held && one(held)) one(held).focus();
    tick();
    if (!chosen && one("#rows li") && !isPhone()) choose(one("#rows li").dataset.id);
    if (!chosen && !one("#rows li")) one("#detail").replaceChildren();
  }

  const isPhone = () => matchMedia("(max-width: 859px)").matches;

  function mark(id) {
    for (const row of all("#rows li")) {
      const is = row.dataset.id === id;
      row.classList.toggle("chosen", is);
      const link = one("a", row);
      if (is) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }

  let wantedId = ""; // the request that was chosen last, which may not be shown yet
  async function choose(id) {
    wantedId = id;
    mark(id);
    const before = article() && article().dataset.id === id ? hunkBoxes().filter((box) => !box.checked).map((box) => box.name) : [];
    try {
      const drawn = await fetched(`/queue/${id}?part=detail`);
      if (wantedId !== id) return; // another one was chosen meanwhile
      one("#detail").replaceChildren(drawn);
      for (const box of hunkBoxes()) if (before.includes(box.name)) box.checked = false; // drawn again, e.g. after an error
      shownAt = performance.now();
      arrange();
      const row = one(`#rows li[data-id="${CSS.escape(id)}"]`);
      if (row) row.scrollIntoView({ block: "nearest" });
    } catch (error) { say("The request can't be shown"); }
  }

  // Whether a request is to be seen (in a narrow window a page has the list alone), and no other is chosen.
  const isShown = (id) => Boolean(article()) && article().dataset.id === id && article().checkVisibility() && (!wantedId || wantedId === id);

  let outputTimer = 0;
  function moreOutput(id) {
    // The server renders the output, since it marks invisible characters; at most once in 700 ms.
    if (outputTimer || !article() || article().dataset.id !== id) return;
    outputTimer = setTimeout(async () => {
      outputTimer = 0;
      if (!isShown(id)) return;
      await choose(id);
      const output = one("#detail .output");
      if (output) output.scrollTop = output.scrollHeight;
    }, 700);
  }

  function step(by) {
    const rows = all("#rows li");
    if (!rows.length || !rows[0].checkVisibility()) return;
    const at = rows.findIndex((row) => row.classList.contains("chosen"));
    const row = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    one("a", row).focus();
    if (row === rows[at]) return; // the last one: what is shown, and where one is in it, stays
    if (isPhone()) mark(wantedId = row.dataset.id); else choose(row.dataset.id);
  }

  function arrange() {
    const unified = localStorage.getItem("columns") === "one";
    const diff = one("#diff");
    if (diff) {
      diff.classList.toggle("unified", unified);
      one("#columns").setAttribute("aria-pressed", unified);
      one("#columns").firstChild.textContent = unified ? "Two columns " : "One column ";
    }
    ticked();
    tick();
  }

  // --- what is ticked

  const hunkBoxes = () => all("#detail .hunk-head input[type=checkbox]");
  const isTicked = (box) => box.checked;

  function ticked() {
    const boxes = hunkBoxes(), chosen = one("#chosen");
    if (chosen) {
      const count = boxes.filter(isTicked).length;
      chosen.textContent = `${count} of ${boxes.length}`;
      one("#decide .approve").disabled = !count;
    }
    for (const group of all("#together .folder, #together .decide")) {
      const files = all(group.matches(".folder") ? "input[type=checkbox]" : "#together input[type=checkbox]", group.matches(".folder") ? group : document);
      const count = files.filter(isTicked).length;
      for (const each of all(".chosen", group)) each.textContent = `${count} of ${files.length}`;
      for (const each of all("button[name]", group)) each.disabled = !count;
    }
  }

  // The hunks that an approval is about: those that are ticked, or all where none can be left out; undefined where none are shown.
  function hunksOf(shown) {
    const count = Number(shown.dataset.hunks), boxes = hunkBoxes();
    if (!count) return undefined;
    return boxes.length ? boxes.filter(isTicked).map((box) => Number(box.name.slice(5))) : [...Array(count).keys()];
  }

  document.addEventListener("change", (event) => { if (event.target.matches("input[type=checkbox]")) ticked(); });

  // A file of a run is shown below its row.
  async function unfold(link) {
    const row = link.closest("li");
    const open = one(".diff", row);
    if (open) { open.remove(); link.setAttribute("aria-expanded", "false"); return; }
    try {
      row.append(await fetched(`${link.getAttribute("href")}?part=changes`));
      link.setAttribute("aria-expanded", "true");
      one(".diff", row).classList.toggle("unified", localStorage.getItem("columns") === "one");
    } catch (error) { say("The file can't be shown"); }
  }

  function columns() {
    localStorage.setItem("columns", localStorage.getItem("columns") === "one" ? "two" : "one");
    arrange();
  }

  function hunk(by) {
    const hunks = all(".hunk");
    if (!hunks.length) return;
    const at = hunks.indexOf(document.activeElement);
    const next = hunks[Math.min(hunks.length - 1, Math.max(0, at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  // --- deciding

  async function decide(answer, isAimed = false) {
    const shown = article();
    if (!shown || shown.dataset.status !== "pending" || isDeciding) return;
    // A key doesn't decide about a request that was just shown, since it may be meant for the one before, nor about one that
    // isn't chosen any more, or isn't to be seen.
    if (!isAimed && (performance.now() - shownAt < 350 || !isShown(shown.dataset.id))) { say("Look at it first"); return; }
    const approved = answer === "approve" || answer === "always-allow";
    const hunks = approved ? hunksOf(shown) : undefined, hasLeftOut = hunks && hunks.length < Number(shown.dataset.hunks);
    let everywhere;
    if (hunks && !hunks.length) { say("No change is ticked"); return; }
    if (answer.startsWith("always")) {
      if (!shown.dataset.rule) { say("No rule can be made of this request"); return; }
      if (hasLeftOut) { say("A rule is about whole files: tick all changes first"); return; }
      everywhere = one("#everywhere", shown).checked;
      const where = everywhere ? "for all projects" : `for ${one(".rule > .raw:last-child", shown).textContent}`;
      const word = approved ? "Always allow" : "Always deny", rule = one(".rule code", shown).textContent;
      if (!await confirmed(`${word}?`, `It stores the rule ${rule} ${where} and decides by it what else is pending.`, word)) return;
    }
    isDeciding = true;
    for (const each of all(".foot button")) each.disabled = true;
    const id = shown.dataset.id, before = all("#rows li").map((row) => row.dataset.id); // the list may be drawn meanwhile
    const hasMovedOn = () => wantedId && wantedId !== id;
    try {
      const answered = await fetch(`/api/requests/${id}/${approved ? "approve" : "deny"}`, {
        method: "POST", headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
        body: JSON.stringify({ always: answer.startsWith("always"), digest: shown.dataset.digest, hunks, everywhere }) });
      if (answered.status === 401) { location.assign("/login"); return; }
      const said = await answered.json().catch(() => ({}));
      const part = hasLeftOut ? `: ${hunks.length} of ${shown.dataset.hunks} changes` : "";
      say(answered.ok ? `Request ${id} was ${approved ? "approved" : "denied"}${part}` : said.detail || "That failed");
      if (answered.ok) await next(id, before, hasMovedOn()); else if (!hasMovedOn()) await choose(id);
    } catch (error) {
      say("The service doesn't answer");
      for (const each of all(".foot button")) each.disabled = false;
    } finally { isDeciding = false; }
    refreshList();
  }

  // Takes *id* out of the list, and shows the next one of those that were below it *before*, or else above it.
  async function next(id, before, hasMovedOn) {
    if (one(".split.alone") && isPhone()) { location.assign("/queue"); return; }
    const at = before.indexOf(id), row = (other) => one(`#rows li[data-id="${CSS.escape(other)}"]`);
    decisions += 1;
    if (row(id)) row(id).remove();
    if (hasMovedOn) return;
    const other = [...before.slice(at + 1), ...before.slice(0, Math.max(0, at)).reverse()].find(row) || id;
    await choose(other);
    if (wantedId === other) one("#detail").focus({ preventScroll: true }); // else a key has chosen another one meanwhile
  }

  function confirmed(head, text, yes) {
    const dialog = one("#confirm");
    one("#confirm-title").textContent = head;
    one("#confirm-text").textContent = text;
    one("#confirm-yes").textContent = yes;
    dialog.returnValue = "no";
    dialog.showModal();
    one("#confirm-yes").focus();
    return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.id === "decide") {
      event.preventDefault();
      decide(event.submitter ? event.submitter.value : "approve", true);
    } else if (form.dataset.bulk && !form.dataset.sure) {
      event.preventDefault();
      const button = event.submitter;
      const word = button.value === "approve" ? "Approve" : "Deny";
      if (await confirmed(`${word} ${form.dataset.count} requests?`, `All of ${form.dataset.bulk} up to #${form.upto.value}.`, word)) {
        form.dataset.sure = "1";
        if (!form.isConnected) { form.hidden = true; document.body.append(form); } // the list was drawn anew meanwhile
        form.requestSubmit(button);
      }
    }
  });

  // --- keys

  document.addEventListener("click", (event) => {
    const row = event.target.closest("#rows li > a:first-child");
    if (row && !isPhone() && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      choose(row.closest("li").dataset.id);
    } else if (event.target.closest("#together .view") && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      unfold(event.target.closest(".view"));
    } else if (event.target.closest("#tick-all, #tick-none")) {
      for (const box of all("#together input[type=checkbox]")) box.checked = event.target.id === "tick-all";
      ticked();
    } else if (event.target.closest("#columns")) columns();
    else if (event.target.closest("#help-button")) one("#help").showModal();
    else if (event.target.closest("#notify")) notifications();
  });

  const KEYS = {
    j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    a: () => decide("approve"), d: () => decide("deny"), A: () => decide("always-allow"), D: () => decide("always-deny"),
    u: () => { const undo = one(".held button"); if (undo) undo.click(); },
    s: columns, "]": () => hunk(1), "[": () => hunk(-1), n: () => notifications(), "?": () => one("#help").showModal(),
    b: () => { const bulk = one("#bulk"); if (bulk) { bulk.open = true; one("button", bulk).focus(); } },
    Enter: () => { const id = wantedId || (article() && article().dataset.id); if (id && one("#list")) location.assign(`/queue/${id}`); },
  };
  all(".tabs a").forEach((tab, at) => { KEYS[at + 1] = () => location.assign(tab.href); });

  document.addEventListener("keydown", (event) => {
    const on = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat && !["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) return;
    if (one("dialog[open]") || on.closest("input:not([type=checkbox]), select, textarea, [contenteditable]")) return;
    if (event.key === "Enter" && on.closest("input")) return;
    if (["Enter", "ArrowDown", "ArrowUp"].includes(event.key) && on.closest("a, button, summary") && !on.closest("#rows")) return;
    if (event.key === "Enter" && on.closest("button, summary, .others")) return;
    const does = Object.hasOwn(KEYS, event.key) && KEYS[event.key];
    if (does) { event.preventDefault(); does(); }
  });

  // --- notifications

  const wanted = () => localStorage.getItem("notify") === "yes" && "Notification" in window && Notification.permission === "granted";

  function notifyState() { one("#notify").setAttribute("aria-pressed", wanted()); }

  async function notifications() {
    if (!("Notification" in window)) { say("This browser has no notifications"); return; }
    if (wanted()) localStorage.setItem("notify", "no");
    else if (await Notification.requestPermission() === "granted") localStorage.setItem("notify", "yes");
    notifyState();
  }

  let notifiedAt = 0;
  function notify(request) {
    if (!wanted() || !document.hidden || Date.now() - notifiedAt < 3000) return;
    notifiedAt = Date.now();
    // Without any text of a sandbox, since the system shows the body unescaped.
    const told = new Notification("A request waits", { body: `${request.category}, number ${request.id}`, tag: "leeward", icon: "/static/icon.svg" });
    told.onclick = () => { window.focus(); location.assign(`/queue/${request.id}`); };
  }

  // --- what the service tells

  let wait = 500;
  function state(name, text) { const shown = one("#link-state"); shown.dataset.state = name; one(".text", shown).textContent = text; }

  function listen() {
    const socket = new WebSocket(`ws://${location.host}/api/live`);
    socket.onmessage = (event) => {
      const told = JSON.parse(event.data);
      if (told.type === "init") { wait = 500; state("on", "live"); count(told.pending); refreshList(); }
      else if (told.type === "request") { notify(told.request); say(`New request ${told.request.id}: ${told.request.category}`); refreshList(); }
      else if (told.type === "resolve") {
        if (isShown(String(told.request.id)) && !isDeciding) choose(String(told.request.id));
        refreshList();
      } else if (told.type === "output") moreOutput(String(told.id));
      else if (told.type === "rules" && document.body.dataset.tab === "rules" && !document.activeElement.closest("form")) location.reload();
      else if (told.type === "shutdown") { state("lost", "the service has ended"); wait = 5000; }
    };
    socket.onclose = (event) => {
      if (event.code === 1008) { state("lost", "logged out"); return; }
      if (one("#link-state").dataset.state !== "lost" || wait < 5000) state("lost", "connecting again");
      setTimeout(listen, wait);
      wait = Math.min(15000, wait * 2);
    };
  }

  notifyState();
  arrange();
  setInterval(tick, 1000);
  listen();
})();
