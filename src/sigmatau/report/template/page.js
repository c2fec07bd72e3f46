"use strict";
(() => {
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const matrices = JSON.parse(document.getElementById("matrices").textContent);
  const drawn = new Set();

  // Storage may be refused to a local file; the page then forgets the choice, nothing else.
  const remember = (value) => { try { localStorage.setItem("theme", value); } catch { /* as said */ } };
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

  const themed = () => {
    const css = getComputedStyle(root);
    const get = (name) => css.getPropertyValue(name).trim();
    return { text: get("--text"), dim: get("--dim"), line: get("--line"), card: get("--card") };
  };

  const layout = (own) => {
    const c = themed();
    const axis = { gridcolor: c.line, linecolor: c.line, zerolinecolor: c.line };
    return {
      ...own,
      xaxis: { ...own.xaxis, ...axis },
      yaxis: { ...own.yaxis, ...axis },
      font: { color: c.dim, size: 12, family: "system-ui, sans-serif" },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 50, r: 12, t: 8, b: 44 },
      showlegend: false,
      hovermode: "closest",
      hoverlabel: { bgcolor: c.card, bordercolor: c.line, font: { color: c.text } },
    };
  };
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  const draw = (box) => {
    const spec = plots[box.dataset.plot];
    Plotly.newPlot(box, spec.data, layout(spec.layout), config);
    box.ownLayout = spec.layout;
    drawn.add(box);
    apply(box.closest("figure"));
  };

  const drawMatrix = (run) => {
    const box = run.querySelector(".matrix");
    const { tasks, rows } = matrices[run.dataset.run];
    const square = rows.map((row) => tasks.map((_, i) => row[i] ?? null));
    const steps = rows.map((_, k) => k + 1);
    const data = [{
      type: "heatmap", z: square, y: steps, colorscale: "Viridis", hoverongaps: false,
      text: square.map((row) => row.map((v) => (v === null ? "" : v.toFixed(1)))),
      texttemplate: tasks.length <= 12 ? "%{text}" : "",
      customdata: square.map(() => tasks),
      hovertemplate: "%{customdata}<br>after %{y} tasks: %{z:.2f} %<extra></extra>",
    }];
    const short = tasks.map((n) => (n.length < 16 ? n : n.slice(0, 14) + "…"));
    const every = Math.max(1, Math.floor(tasks.length / 20));
    const places = tasks.map((_, i) => i).filter((i) => i % every === 0);
    box.ownLayout = {
      xaxis: { tickvals: places, ticktext: places.map((i) => short[i]), automargin: true },
      yaxis: { autorange: "reversed", title: { text: "tasks learnt" }, automargin: true },
    };
    Plotly.newPlot(box, data, layout(box.ownLayout), config);
    drawn.add(box);
  };

  // A series is shown if its chip is pressed; the strokes behind the orders have none and stay.
  const apply = (figure) => {
    const off = new Set(
      [...figure.querySelectorAll('.series[aria-pressed="false"]')].map((b) => b.dataset.name));
    for (const box of figure.querySelectorAll(".plot")) {
      if (drawn.has(box)) Plotly.restyle(box, { visible: box.data.map((t) => !off.has(t.name)) });
    }
  };

  const setTheme = (name) => {
    root.dataset.theme = name;
    for (const box of drawn) Plotly.relayout(box, layout(box.ownLayout));
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const preferred = () => remembered() ?? (system.matches ? "dark" : "light");
  setTheme(preferred());
  system.addEventListener("change", () => setTheme(preferred()));
  document.getElementById("theme").addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    remember(next);
    setTheme(next);
  });

  const toggle = (button) => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", pressed);
    return pressed;
  };
  for (const button of document.querySelectorAll(".chip.series")) {
    button.addEventListener("click", () => { toggle(button); apply(button.closest("figure")); });
  }
  for (const button of document.querySelectorAll(".chip.lines")) {
    button.addEventListener("click", () => {
      button.closest("section").classList.toggle("hide-" + button.dataset.source, !toggle(button));
    });
  }
  for (const run of document.querySelectorAll("details.run")) {
    run.addEventListener("toggle", () => {
      if (run.open && !drawn.has(run.querySelector(".matrix"))) drawMatrix(run);
    });
  }

  // Plots are drawn when they come near the view: a page of hundreds of panels opens at once.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) { watcher.unobserve(entry.target); draw(entry.target); }
    }
  }, { rootMargin: "600px" });
  for (const box of document.querySelectorAll("[data-plot]")) watcher.observe(box);
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("[data-plot]")) if (!drawn.has(box)) draw(box);
  });
})();
