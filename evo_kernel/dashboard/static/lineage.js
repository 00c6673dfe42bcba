// The lineage's picture: moved and zoomed by wheel, drag, pinch, buttons and keys. Without this it is still all there.
"use strict";

(() => {
  const holder = document.getElementById("tree");
  if (!holder) return;
  const svg = holder.querySelector("svg");
  const full = { width: +svg.dataset.width, height: +svg.dataset.height };
  let view = { x: 0, y: 0, width: full.width, height: full.height };

  const show = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
  const unit = () => Math.max(view.width / svg.clientWidth, view.height / svg.clientHeight); // picture units a pixel

  function zoom(factor, at) {
    const width = Math.min(full.width * 1.5, Math.max(150, view.width * factor));
    const real = width / view.width;
    const middle = at || { x: view.x + view.width / 2, y: view.y + view.height / 2 };
    view = { x: middle.x - (middle.x - view.x) * real, y: middle.y - (middle.y - view.y) * real, width, height: view.height * real };
    show();
  }
  function move(x, y) { view.x += x; view.y += y; show(); }
  function all() { view = { x: 0, y: 0, ...full }; show(); }
  function place(event) {
    const box = svg.getBoundingClientRect(), size = unit();
    return { x: view.x + view.width / 2 + (event.clientX - box.left - box.width / 2) * size,
      y: view.y + view.height / 2 + (event.clientY - box.top - box.height / 2) * size };
  }

  // Wide lineages open at the newest end, at a size that can be read.
  function open() {
    const readable = svg.clientWidth * 1.1, asked = document.getElementById("at-node");
    view.height = full.height;
    view.width = Math.min(full.width, Math.max(readable, full.height * svg.clientWidth / svg.clientHeight));
    view.x = full.width - view.width;
    if (asked) view.x = Math.max(0, +asked.querySelector("circle").getAttribute("cx") - view.width / 2);
    show();
  }

  holder.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, place(event)); }, { passive: false });
  const held = new Map();
  let moved = 0, apart = 0;
  holder.addEventListener("pointerdown", (event) => { held.set(event.pointerId, event); moved = 0; apart = 0; });
  addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (!before) return;
    held.set(event.pointerId, event);
    if (held.size === 2) {
      const [one, two] = [...held.values()], distance = Math.hypot(one.clientX - two.clientX, one.clientY - two.clientY);
      if (apart && distance) zoom(apart / distance, place(one));
      apart = distance;
      moved += 9;
      return;
    }
    const x = before.clientX - event.clientX, y = before.clientY - event.clientY;
    moved += Math.abs(x) + Math.abs(y);
    move(x * unit(), y * unit());
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, (event) => { held.delete(event.pointerId); apart = 0; });
  holder.addEventListener("click", (event) => { if (moved > 8) event.preventDefault(); }, true);
  holder.addEventListener("dragstart", (event) => event.preventDefault());
  holder.addEventListener("keydown", (event) => {
    const step = view.width / 10;
    const act = { ArrowLeft: () => move(-step, 0), ArrowRight: () => move(step, 0), ArrowUp: () => move(0, -view.height / 10),
      ArrowDown: () => move(0, view.height / 10), "+": () => zoom(1 / 1.3), "=": () => zoom(1 / 1.3), "-": () => zoom(1.3), 0: all }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  });
  holder.addEventListener("focusin", (event) => { // what is focused by keyboard comes into view
    const circle = event.target.querySelector?.("circle");
    if (!circle || held.size) return;
    const x = +circle.getAttribute("cx");
    if (x < view.x || x > view.x + view.width) { view.x = x - view.width / 2; show(); }
  });
  const tools = document.getElementById("zoom");
  tools.hidden = false;
  tools.addEventListener("click", (event) => {
    const act = { in: () => zoom(1 / 1.4), out: () => zoom(1.4), all }[event.target.dataset.zoom];
    if (act) act();
  });
  open();
})();
