// Draws what the daemon does anew, every two seconds while the page is seen. The server has rendered and escaped it.
"use strict";

(() => {
  const policy = window.trustedTypes ? trustedTypes.createPolicy("leeward-daemon", { createHTML: (text) => text }) : { createHTML: (text) => text };

  let isDrawing = false;

  async function draw() {
    if (document.hidden || isDrawing) return;
    isDrawing = true;
    try {
      const answer = await fetch("/daemon?part=now", { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.assign("/login"); return; }
      const holder = document.createElement("template"); // what is in it runs no script
      holder.innerHTML = policy.createHTML(await answer.text());
      const now = document.getElementById("now"), chosen = getSelection();
      if (answer.ok && (chosen.isCollapsed || !now.contains(chosen.anchorNode))) now.replaceChildren(holder.content);
    } catch (error) { /* the next one tries again; what is shown is from before */ } finally { isDrawing = false; }
  }

  setInterval(draw, 2000);
})();
