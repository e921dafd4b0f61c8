// The heat map of an index file. It is drawn from the JSON in the page, and updated by the stream's frames, which have the
// cells that changed since a time. A page whose map is older than that time fetches the whole map by REST.
"use strict";

(() => {
  const section = document.getElementById("slots"), canvas = section.querySelector("[data-slots]");
  const scale = section.querySelector("[data-scale]"), description = document.getElementById("cell-description"), stretch = section.querySelector("[data-stretch]");
  const shown = JSON.parse(document.getElementById("slots-data").textContent);
  const percent = (share) => `${(share * 100).toFixed(1)} %`, grouped = new Intl.NumberFormat("en");
  let pointed = -1, fetching = false;

  const room = (cell) => Math.min(shown.cell_slots, shown.slots - cell * shown.cell_slots);
  const share = (cell) => shown.cells[cell] / room(cell);

  // ---- drawing: one pixel for each cell, which the style sheet enlarges without blurring
  const ramp = () => {
    const stops = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim().split(/\s+/).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return (value) => {
      const place = Math.min(Math.max(value, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
      return stops[low].map((part, n) => Math.round(part + (stops[low + 1][n] - part) * (place - low)));
    };
  };
  const paint = (target, width, height, colourOf) => {
    const context = target.getContext("2d"), image = context.createImageData(width, height);
    for (let n = 0; n < width * height; n++) {
      const colour = colourOf(n);
      if (colour) image.data.set([...colour, 255], n * 4);
    }
    context.putImageData(image, 0, 0);
  };
  const draw = () => {
    const colour = ramp(), shares = shown.cells.map((_, cell) => share(cell));
    const low = stretch.checked ? shares.reduce((least, one) => Math.min(least, one), 1) : 0;
    const high = stretch.checked ? shares.reduce((most, one) => Math.max(most, one), 0) : 1;
    const width = high - low || 1;
    const mark = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim().match(/\w\w/g).map((part) => parseInt(part, 16));
    paint(canvas, shown.columns, shown.rows, (cell) => cell >= shares.length ? null : cell === pointed ? mark : colour((shares[cell] - low) / width));
    paint(scale, 64, 1, (n) => colour(n / 63));
    section.querySelector("[data-scale-low]").textContent = percent(low);
    section.querySelector("[data-scale-high]").textContent = percent(high);
  };
  const describe = () => {
    if (pointed < 0) return;
    const first = pointed * shown.cell_slots;
    description.textContent = `Cell ${grouped.format(pointed)}: slots ${grouped.format(first)} to ${grouped.format(first + room(pointed) - 1)}, ${grouped.format(shown.cells[pointed])} used, ${percent(share(pointed))}`;
  };
  const point = (cell) => {
    if (cell === pointed || cell < 0 || cell >= shown.cells.length) return;
    pointed = cell;
    describe();
    draw();
  };

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(shown.columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * shown.columns)));
    const row = Math.min(shown.rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * shown.rows)));
    point(row * shown.columns + column);
  });
  canvas.addEventListener("focus", () => { if (pointed < 0) point(0); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shown.columns, ArrowDown: shown.columns, Home: -pointed, End: shown.cells.length - 1 - pointed }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    point(pointed + step);
  });
  stretch.addEventListener("change", draw);
  addEventListener("themechange", draw);

  // ---- the stream
  const setCells = (cells, at) => { shown.cells = cells; shown.at_ms = at; };
  const fetchAll = async () => {
    if (fetching) return;
    fetching = true;
    try {
      const answer = await fetch(`/api/v1/store/index/${shown.name}/slots`);
      if (answer.ok) { const whole = await answer.json(); setCells(whole.cells, Number(whole.at_ms)); draw(); describe(); }
    } finally { fetching = false; }
  };
  section.addEventListener("live", (event) => {
    const frame = event.detail;
    const list = section.querySelector("[data-findings]"), findings = frame.findings.join("\n");
    if ([...list.children].map((one) => one.textContent).join("\n") !== findings) {
      list.replaceChildren(...frame.findings.map((finding) => Object.assign(document.createElement("li"), { className: "notice warn", textContent: finding })));
    }
    if (frame.cells) setCells(frame.cells, frame.at_ms);
    else if (frame.since_ms > shown.at_ms) return fetchAll();
    else {
      for (let n = 0; n < frame.changed.length; n += 2) shown.cells[frame.changed[n]] = frame.changed[n + 1];
      shown.at_ms = frame.at_ms;
    }
    draw();
    describe();
  });

  // ---- from file to file
  const ages = section.querySelector("[data-ages]");
  if (ages) {
    const files = [...document.querySelectorAll("[data-index-file]")], name = document.getElementById("age-name");
    ages.addEventListener("input", () => { name.textContent = `${ages.value} of ${files.length}, ${files[ages.value - 1].textContent}`; });
    ages.addEventListener("change", () => { location.href = `${files[ages.value - 1].getAttribute("href")}#slots`; });
  }
  draw();
})();
