// Plots: numbers fetched as JSON, drawn by uPlot. Colours come from the style sheet.
"use strict";

(() => {
  const HEIGHT = 260;
  const NAMES = { evaluations: "evaluations", hours: "hours", dollars: "dollars" };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const series = (at) => colour(["--accent", "--second"][at % 2]);
  const axis = (label) => ({ label, stroke: colour("--dim"), labelSize: 24, font: "12px system-ui", labelFont: "12px system-ui",
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } });

  async function load(place) {
    const answer = await fetch(place.dataset.from, { credentials: "same-origin" });
    return answer.ok ? answer.json() : null;
  }

  // ---- best so far -------------------------------------------------------------------------------------------------
  function riseChoices(place, axes, draw) {
    const group = document.createElement("fieldset");
    group.className = "choices";
    const legend = document.createElement("legend");
    legend.textContent = "against";
    group.append(legend);
    for (const name of axes) {
      const label = document.createElement("label"), input = document.createElement("input");
      input.type = "radio";
      input.name = `axis-${place.dataset.from}`;
      input.value = name;
      input.checked = name === place.dataset.axis;
      input.addEventListener("change", () => { place.dataset.axis = name; draw(); });
      label.append(input, ` ${NAMES[name]}`);
      group.append(label);
    }
    return group;
  }

  function drawRises(place, first) {
    let data = first, plot = null;
    place.dataset.axis ||= data.axes[0];
    const holder = document.createElement("div");
    const draw = () => {
      if (plot) plot.destroy();
      plot = null;
      if (data.runs.every((run) => run[place.dataset.axis].x.length === 0)) { holder.textContent = "Nothing passed yet."; return; }
      holder.textContent = "";
      const name = place.dataset.axis;
      const runs = data.runs.map((run) => [run[name].x, run[name].score]);
      const [x, ...scores] = runs.length > 1 ? uPlot.join(runs) : runs[0];
      const filled = scores.map((values, at) => carry(x, values, data.runs[at][name].x));
      plot = new uPlot({
        width: place.clientWidth, height: HEIGHT, cursor: { y: false },
        scales: { x: { time: false, range: (u, low, high) => [Math.min(0, low), high > low ? high : low + 1] }, y: { auto: true } },
        axes: [axis(NAMES[name]), axis(["score", ...new Set(data.runs.map((run) => run.against && `× ${run.against}`))].filter(Boolean).slice(0, 2).join(", "))],
        series: [{ label: NAMES[name], value: (u, v) => v == null ? "now" : +v.toPrecision(4) }, ...data.runs.map((run, at) => ({
          label: run.title, stroke: series(at), width: 2, paths: uPlot.paths.stepped({ align: 1 }), spanGaps: true,
          dash: at ? [6, 4] : [], points: { show: data.runs.length === 1, size: 5, fill: series(at) }, value: (u, v, which, index) => shown(index == null ? run[name].score.at(-1) : v) }))],
      }, [x, ...filled], holder);
    };
    place.replaceChildren(riseChoices(place, data.axes, draw), holder);
    draw();
    return (fresh) => { data = fresh || data; draw(); };
  }

  // In the legend: what is under the cursor; without one, where the run stands.
  const shown = (score) => score == null ? "–" : `${score.toFixed(3)}×`;

  // A step line holds its value until the next point; after the run's last point there is none.
  function carry(x, values, own) {
    const last = own.length ? own[own.length - 1] : -Infinity;
    let held = null;
    return values.map((value, at) => { held = value ?? held; return x[at] > last ? null : held; });
  }

  const redraw = new Map();

  async function show(place) {
    const data = await load(place);
    if (!data) return;
    const again = redraw.get(place);
    if (again) again(data); else redraw.set(place, drawRises(place, data));
  }

  const places = [...document.querySelectorAll("[data-plot]")];
  places.forEach(show);
  document.addEventListener("fresh", () => places.forEach(show));
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => redraw.forEach((draw) => draw()), 150); });
})();
