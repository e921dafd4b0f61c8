// Charts of the last two minutes: what was measured while a page was open (the page has it as JSON), then live values.
// While no page was open nothing was measured, and the line has a gap.
//
// And charts of a result, which do not move: data-series="ID" names the JSON [times in s, values] in the page; data-format
// and data-tone say how to draw it. Those of a part that htmx fetched are drawn when it arrives.
"use strict";

(() => {
  const WINDOW_SECONDS = 120, LEAST_SECONDS = 30, GAP_SECONDS = 5;
  const BYTE_STEPS = Array.from({ length: 41 }, (_, power) => 2 ** power);  // KiB and MiB want round numbers of their own
  const TIME_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 864000].map((s) => s * 1000)];
  const STEPS = { size: BYTE_STEPS, size_rate: BYTE_STEPS, duration: TIME_STEPS };
  const past = JSON.parse(document.getElementById("past")?.textContent ?? "[]");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const draw = (element, section) => {
    // data-chart="path:Label:colour,path:Label:colour"
    const lines = element.dataset.chart.split(",").map((part) => { const [path, label, tone] = part.split(":"); return { path, label, tone }; });
    const format = live.format[element.dataset.format];
    const data = [[], ...lines.map(() => [])];
    let chart = null;
    const axis = () => ({ stroke: colour("faint"), grid: { stroke: colour("line-soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" });
    const make = () => {
      chart?.destroy();
      chart = new uPlot({
        width: element.clientWidth, height: element.clientHeight,
        cursor: { y: false, points: { size: 5 } }, legend: { show: false }, padding: [8, 28, 0, 0],
        scales: { x: { time: true, range: (_, low, high) => [Math.max(high - WINDOW_SECONDS, Math.min(low, high - LEAST_SECONDS)), high] }, y: { range: (_, __, high) => [0, (high || 1) * 1.15] } },
        axes: [{ ...axis(), space: 70, size: 26, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")) },
               { ...axis(), size: 74, values: (_, ticks) => ticks.map((t) => format(t)), ...(STEPS[element.dataset.format] ? { incrs: STEPS[element.dataset.format] } : {}) }],
        series: [{}, ...lines.map((line, n) => ({ stroke: colour(line.tone), width: 1.75, points: { show: false }, fill: n === 0 ? `${colour(line.tone)}14` : undefined }))],
      }, data, element);
    };
    const add = (now, values) => {
      if (data[0].length && now <= data[0].at(-1)) return;
      if (data[0].length && now - data[0].at(-1) > GAP_SECONDS) { data[0].push(now - 0.001); lines.forEach((_, n) => data[n + 1].push(null)); }
      data[0].push(now);
      values.forEach((value, n) => data[n + 1].push(live.known(value) ? Number(value) : null));
      while (data[0].length > 2 && data[0][1] < now - WINDOW_SECONDS) data.forEach((list) => list.shift());
    };
    for (const point of past) add(point.at_ms / 1000, lines.map((line) => live.at(point, line.path)));
    if (data[0].length) make();
    section.addEventListener("live", (event) => {
      add((event.detail.at_ms ?? Date.now()) / 1000, lines.map((line) => live.at(event.detail, line.path)));
      if (chart) chart.setData(data); else make();
    });
    addEventListener("themechange", () => chart && make());
    new ResizeObserver(() => chart?.setSize({ width: element.clientWidth, height: element.clientHeight })).observe(element);
  };

  const drawSeries = (element) => {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "1";
    const data = JSON.parse(document.getElementById(element.dataset.series).textContent);
    const format = live.format[element.dataset.format], day = 86400;
    // Hours by their clock, midnights by their date.
    const label = (t) => (t % day ? new Date(t * 1000).toISOString().slice(11, 16) : new Date(t * 1000).toISOString().slice(5, 10));
    let chart = null;
    const make = () => {
      chart?.destroy();
      const tone = colour(element.dataset.tone);
      const axis = { stroke: colour("faint"), grid: { stroke: colour("line-soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      chart = new uPlot({
        width: element.clientWidth, height: element.clientHeight, legend: { show: false }, cursor: { show: false }, padding: [8, 28, 0, 0],
        // A bar needs room on both sides of its hour.
        scales: { x: { time: true, range: (_, low, high) => [low - 1800, high + 1800] }, y: { range: (_, __, high) => [0, (high || 1) * 1.1] } },
        axes: [{ ...axis, space: 56, size: 26, incrs: [3600, 7200, 14400, 21600, 43200, day, 2 * day, 7 * day, 30 * day],
                 values: (_, ticks) => ticks.map(label) },
               { ...axis, size: 74, incrs: element.dataset.format === "duration" ? TIME_STEPS : [1, 2, 5].flatMap((n) => Array.from({ length: 13 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b), values: (_, ticks) => ticks.map((t) => format(t)) }],
        series: [{}, { stroke: tone, fill: `${tone}66`, width: 1, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 40] }) }],
        tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "UTC"),
      }, data, element);
    };
    make();
    addEventListener("themechange", () => element.isConnected && make());
    new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: element.clientHeight })).observe(element);
  };
  const drawAll = (root) => { for (const element of root.querySelectorAll("[data-series]")) drawSeries(element); };
  drawAll(document);
  document.body.addEventListener("htmx:afterSwap", (event) => drawAll(event.target));

  for (const section of live.sections) for (const element of section.querySelectorAll("[data-chart]")) draw(element, section);
})();
