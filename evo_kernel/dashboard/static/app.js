// Keys, and pages that follow a run. Text from the server is only ever parsed as the same page that the server rendered
// and escaped; nothing is evaluated.
"use strict";

(() => {
  const REFRESH_MS = 3000;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const at = event.target;
    if (at instanceof HTMLInputElement || at instanceof HTMLSelectElement) {
      if (event.key === "Escape") at.blur();
      return;
    }
    const wanted = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
    if (!wanted) return;
    event.preventDefault();
    if (wanted instanceof HTMLInputElement) wanted.select(); else wanted.click();
  });

  // A page that is seen asks for itself, and takes over the parts that may change.
  async function refresh() {
    if (document.hidden) return;
    let answer;
    try { answer = await fetch(location.href, { credentials: "same-origin" }); } catch { return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    let changed = false;
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || other.innerHTML === part.innerHTML || part.contains(document.activeElement)) continue;
      part.replaceChildren(...other.childNodes);
      changed = true;
    }
    if (changed) document.dispatchEvent(new CustomEvent("fresh"));
  }
  if (document.querySelector("#live")) setInterval(refresh, REFRESH_MS);

  const tree = document.getElementById("tree"); // opens at the newest end, or at the candidate that is asked for
  const asked = document.getElementById("at-node");
  if (asked) asked.scrollIntoView({ block: "nearest", inline: "center" }); else if (tree) tree.scrollLeft = tree.scrollWidth;
})();
