// Keys, the theme, and pages that follow a run. Text from the server is only ever set as text, or parsed as the same
// page that the server rendered and escaped; nothing is evaluated.
"use strict";

(() => {
  const REFRESH_MS = 3000; // a page asks for itself at most this often
  const $ = (selector, root = document) => root.querySelector(selector);

  // ---- theme -------------------------------------------------------------------------------------------------------
  const button = $("#theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page alone, then */ }
    document.dispatchEvent(new CustomEvent("theme"));
  });

  // ---- keys --------------------------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const at = event.target;
    if (at instanceof HTMLInputElement || at instanceof HTMLSelectElement || at instanceof HTMLTextAreaElement) {
      if (event.key === "Escape") at.blur();
      return;
    }
    const wanted = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
    if (!wanted) return;
    event.preventDefault();
    if (wanted instanceof HTMLInputElement) wanted.select(); else wanted.click();
  });

  // ---- the page follows the run ------------------------------------------------------------------------------------
  const live = $("#live");
  const stream = document.body.dataset.stream;
  let first = "", refreshed = 0, waiting = 0;

  async function refresh() {
    waiting = 0;
    if (document.hidden) { waiting = -1; return; }
    refreshed = Date.now();
    let answer;
    try { answer = await fetch(location.href, { credentials: "same-origin" }); } catch { return; }
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || other.innerHTML === part.innerHTML) continue;
      const held = part.contains(document.activeElement) ? document.activeElement : null;
      const href = held && held.getAttribute("href"), label = held && held.getAttribute("aria-label");
      part.replaceChildren(...other.childNodes);
      if (held) {
        const again = [...part.querySelectorAll("a, [tabindex]")].find((one) =>
          href ? one.getAttribute("href") === href : label && one.getAttribute("aria-label") === label);
        if (again) again.focus({ preventScroll: true });
      }
    }
    document.dispatchEvent(new CustomEvent("fresh"));
  }

  function soon() {
    if (waiting > 0) return;
    waiting = setTimeout(refresh, Math.max(0, refreshed + REFRESH_MS - Date.now()));
  }

  if (stream && window.EventSource) {
    const source = new EventSource(stream);
    source.addEventListener("pulse", (event) => {
      const news = JSON.parse(event.data);
      const best = news.score ? `best ${news.score.toFixed(3)}×` : "nothing passed yet";
      live.textContent = `${news.writing ? "● running" : "○ not running"}, ${best}, ${news.candidates} candidates`;
      live.classList.toggle("running", Boolean(news.writing));
      if (first && first !== event.data && $("[data-live], [data-plot='rises']")) soon();
      first = event.data;
    });
    source.addEventListener("error", () => { live.textContent = "○ no connection to evo-kernel serve"; live.classList.remove("running"); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden && waiting === -1) { waiting = 0; soon(); } });
  }
})();
