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
  let last = "", refreshed = 0, waiting = 0;

  async function refresh() {
    waiting = 0;
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
    if (waiting) return;
    waiting = setTimeout(refresh, Math.max(0, refreshed + REFRESH_MS - Date.now()));
  }

  let source = null;

  function hear(event) {
    const news = JSON.parse(event.data);
    const best = news.score ? `best ${news.score.toFixed(3)}×` : "nothing passed yet";
    live.textContent = `${news.writing ? "● running" : "○ not running"}, ${best}, ${news.candidates.toLocaleString("en")} candidates`;
    live.classList.toggle("running", Boolean(news.writing));
    if (last && last !== event.data && $("[data-live]")) soon();
    last = event.data;
  }

  // Only a page that is seen has a stream: browsers open six connections to a server, for all its pages together.
  function follow() {
    if (document.hidden) { if (source) source.close(); source = null; return; }
    if (source) return;
    source = new EventSource(stream);
    source.addEventListener("pulse", hear);
    source.addEventListener("error", () => {
      live.textContent = "○ no connection to evo-kernel serve";
      live.classList.remove("running");
    });
  }

  if (stream && window.EventSource) {
    follow();
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", () => { if (source) source.close(); source = null; });
    addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  }
})();
