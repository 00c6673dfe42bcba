// Before the page is drawn: the theme that was chosen here last, else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system's theme it is */ }
