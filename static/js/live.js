// Live numbers. The page names its streams in attributes; this script subscribes, and writes each frame into the page.
//
//   <section data-stream="group" data-name="billing">     a stream, and everything inside that reads from it
//     <b data-path="lag" data-format="count">12</b>       a value, by its path in the frame's data
//     <a data-path="top.0.name" data-link="/topics/NAME/">  a name that is a link
//     <b data-path="worst.lag" data-none="none yet">      shown when it is unknown, in place of "unknown"
//     <rect data-width="positions.wrote"                  an SVG width: the place of the value between two others, in %
//           data-low="positions.checkpoint_position" data-high="positions.wrote">
//     <tbody data-rows="queues" data-count="24">          when the list has another length, the element around it with
//                                                         hx-trigger="refresh" is fetched again; without one, data-stale
//                                                         is shown
//     <div data-renew hx-get="..." hx-trigger="refresh">   fetched again when the frame differs from the one before: for
//                                                         tables whose rows the server sorts and cuts. With a value,
//                                                         also when the first frame's `mark` is another
//     <div data-html="html">                               HTML that the server drew
//     <span data-severity="severity">                      a severity as a pill: good, warn, bad or unknown
//     <p data-when="sync.count">, <p data-unless="...">   shown when the value is there and not 0, or when it is not
//     <time data-until="1764000000000">                   the time left until then; data-ago, data-since: the time since then
//     <div data-chart="rates.in_per_s" data-format="rate">  see charts.js
//
// The formats are those of mqadmin/templatetags/units.py. The first values are the server's, so a page without this
// script is complete, but its numbers do not change.
"use strict";

const live = (() => {
  const RETRY_MS = [500, 1000, 2000, 4000, 8000];
  const STALE_MS = 2500;  // a running server sends `state` each second to every page
  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  // ---- formats
  const unknown = "unknown";
  const format = {
    count: (n) => (typeof n === "string" ? n : grouped.format(n)),
    size: (n) => {
      let value = Number(n);
      if (Math.abs(value) < 1024) return `${value.toFixed(0)} B`;
      let unit = "";
      for (unit of ["KiB", "MiB", "GiB", "TiB"]) { value /= 1024; if (Math.abs(value) < 1024) break; }
      return `${Math.abs(value) < 1000 ? value.toFixed(1) : grouped.format(value)} ${unit}`;
    },
    rate: (n) => `${n >= 100 || n === 0 ? grouped.format(n) : n.toFixed(1)}/s`,
    size_rate: (n) => `${format.size(n)}/s`,
    percent: (n) => `${(n * 100).toFixed(1)} %`,
    duration: (ms) => {
      if (ms > 0 && ms < 0.1) return "< 0.1 ms";
      if (ms < 10 && ms !== Math.trunc(ms)) return `${ms.toFixed(1)} ms`;
      if (ms < 1000) return `${ms.toFixed(0)} ms`;
      if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
      const minutes = Math.floor(ms / 60000);
      if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
      const hours = Math.floor(minutes / 60);
      return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
    },
    micros: (us) => (us < 9.95 ? `${us.toFixed(1)} µs` : us < 999.5 ? `${us.toFixed(0)} µs` : format.duration(us / 1000)),
    ago: (at) => `${format.duration(Math.max(0, Date.now() - at))} ago`,
    text: (value) => String(value),
  };

  const at = (data, path) => {
    for (const piece of path.split(".")) {
      if (data === null || data === undefined) return undefined;
      data = data[piece];
    }
    return data;
  };
  const known = (value) => value !== null && value !== undefined;
  const showAge = (element) => {
    const text = format.ago(Number(element.dataset.ago));
    if (element.dataset.ago && element.textContent !== text) element.textContent = text;
  };

  const severities = { good: "good", warn: "warning", bad: "act now", unknown: "unknown" };

  // ---- writing a frame into the page
  const write = (section, data) => {
    for (const element of section.querySelectorAll("[data-path]")) {
      let value = at(data, element.dataset.path);
      if (element.dataset.minus) {
        const other = at(data, element.dataset.minus);
        value = known(value) && known(other) ? value - other : undefined;
      }
      if (element.dataset.ago !== undefined) {
        element.dataset.ago = known(value) ? value : "";
        if (known(value)) { showAge(element); element.classList.remove("unknown"); continue; }
      }
      const text = known(value) ? (format[element.dataset.format || "text"])(value) : element.dataset.none ?? unknown;
      if (element.textContent !== text) element.textContent = text;
      element.classList.toggle("unknown", !known(value) && element.dataset.none === undefined);
      // When the name changes, its link changes too.
      if (element.dataset.link && known(value)) element.href = element.dataset.link.replace("NAME", encodeURIComponent(value));
    }
    for (const element of section.querySelectorAll("[data-severity]")) {
      const severity = at(data, element.dataset.severity) ?? "unknown";
      element.className = `pill ${severity === "unknown" ? "" : severity}`;
      element.textContent = severities[severity];
    }
    for (const element of section.querySelectorAll("[data-when]")) element.hidden = !at(data, element.dataset.when);
    for (const element of section.querySelectorAll("[data-unless]")) element.hidden = Boolean(at(data, element.dataset.unless));
    for (const element of section.querySelectorAll("[data-width]")) {
      const value = at(data, element.dataset.width);
      const low = element.dataset.low ? Number(at(data, element.dataset.low) ?? 0) : 0;
      const high = element.dataset.high ? Number(at(data, element.dataset.high) ?? NaN) : Number(element.dataset.most);
      const share = known(value) ? (high > low ? (Number(value) - low) / (high - low) : high > 0 && Number(value) >= high ? 1 : 0) : 0;
      element.setAttribute("width", `${Math.min(100, Math.max(0, share * 100 || 0)).toFixed(3)}%`);
    }
    for (const element of section.querySelectorAll("[data-rows]")) {
      const rows = at(data, element.dataset.rows);
      if (!Array.isArray(rows) || rows.length === Number(element.dataset.count)) continue;
      const fetched = element.closest("[hx-trigger=refresh]"), note = section.querySelector("[data-stale]");
      if (fetched) htmx.trigger(fetched, "refresh"); else if (note) note.hidden = false;
    }
    for (const element of section.querySelectorAll("[data-html]")) {
      const html = at(data, element.dataset.html);
      if (!known(html) || element.shown === html) continue;
      element.shown = html;
      element.innerHTML = html;
      htmx.process(element);
    }
    const table = section.querySelector("[data-renew]");
    if (table) {
      const now = JSON.stringify({ ...data, at_ms: null });
      const isStale = table.shownFrame === undefined ? table.dataset.renew && table.dataset.renew !== data.mark : table.shownFrame !== now;
      if (isStale) htmx.trigger(table, "refresh");
      table.shownFrame = now;
    }
    section.dispatchEvent(new CustomEvent("live", { detail: data }));
  };

  // ---- the socket
  const sections = [...document.querySelectorAll("[data-stream]")];
  const connection = document.querySelector("[data-live]"), broker = document.querySelector("[data-broker-state]");
  let socket = null, failures = 0, lastFrame = Date.now(), loggedOut = false;

  const showConnection = (text, kind) => { if (connection) { connection.textContent = text; connection.className = `pill ${kind}`; } };
  // The broker's state is known only while frames come: a page without frames must not go on to show "running".
  const condition = document.getElementById("condition"), LOST = "The condition is unknown now: the broker does not answer this page.";
  let lastCondition = null;  // what was shown before the connection was lost
  const forgetCondition = () => {
    if (!condition) return;
    const [pill, sentence] = condition.children;
    lastCondition = [pill.className, pill.textContent, sentence.textContent];
    pill.className = "pill";
    pill.textContent = "unknown";
    sentence.textContent = `${LOST} Its last answer was “${lastCondition[2]}”`;
  };
  const recallCondition = () => {
    const [pill, sentence] = condition?.children ?? [];
    if (lastCondition && sentence.textContent.startsWith(LOST)) [pill.className, pill.textContent, sentence.textContent] = lastCondition;
    lastCondition = null;
  };
  const showBroker = (state, sentence) => {
    if (!broker) return;
    recallCondition();
    broker.textContent = state.replace("_", " ");
    broker.className = `pill ${state === "running" ? "good" : state === "failed" || state === "closed" ? "bad" : "warn"}`;
    broker.title = sentence;
    document.body.classList.remove("stale");
  };
  const showLoss = (text, kind) => {
    showConnection(text, kind);
    if (!broker || document.body.classList.contains("stale")) return;
    broker.title = `The broker does not answer this page. Its last state was “${broker.textContent}”: ${broker.title}`;
    broker.textContent = "state unknown";
    broker.className = "pill";
    forgetCondition();
    document.body.classList.add("stale");
  };
  const send = (frame) => { if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame)); };
  const wanted = () => new Map(sections.map((s) => [`${s.dataset.stream} ${s.dataset.name || ""}`, { stream: s.dataset.stream, name: s.dataset.name || "" }])).values();

  const receive = (frame) => {
    for (const section of sections) {
      if (section.dataset.stream !== frame.stream || (section.dataset.name || "") !== frame.name) continue;
      if (frame.kind === "snapshot") write(section, frame.data);
      section.classList.toggle("failed", frame.kind !== "snapshot");
      section.dataset.why = frame.kind === "snapshot" ? "" : `Not measured now: ${frame.data.detail}. The values shown are the last ones measured.`;
    }
    // While the broker starts, each page shows its start instead, and with a store that refuses messages it shows why.
    // So the page is loaded again when the state changes.
    const state = frame.stream === "state" && frame.data.state, before = document.body.dataset.state;
    if (state && before && state !== before) location.reload(); else if (state) showBroker(state, frame.data.sentence);
  };

  const open = () => {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/v1/`);
    socket.onopen = () => {
      failures = 0;
      for (const stream of wanted()) send({ kind: "subscribe", ...stream });
      if (document.hidden) send({ kind: "pause" });
    };
    socket.onmessage = (event) => {
      lastFrame = Date.now();
      if (!document.hidden) showConnection("live", "good");
      for (const frame of JSON.parse(event.data)) receive(frame);
    };
    socket.onclose = (event) => {
      if (event.code === 4401) { loggedOut = true; showLoss("logged out", "bad"); location.reload(); return; }
      if (event.code === 4429) { showLoss("too many pages open", "warn"); return; }
      showLoss("no connection", "bad");
      setTimeout(open, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    };
  };

  addEventListener("visibilitychange", () => {
    send({ kind: document.hidden ? "pause" : "resume" });
    if (document.hidden) showConnection("paused", ""); else lastFrame = Date.now();
  });
  setInterval(() => {
    const opening = socket?.readyState === WebSocket.CONNECTING || socket?.readyState === WebSocket.OPEN;
    if (!document.hidden && !loggedOut && opening && Date.now() - lastFrame > STALE_MS) showLoss("no answer for a while", "warn");
    for (const element of document.querySelectorAll("[data-ago]")) showAge(element);
  }, 1000);

  setInterval(() => {
    for (const element of document.querySelectorAll("[data-until]")) { const left = Number(element.dataset.until) - Date.now(); element.textContent = left > 0 ? `in ${format.duration(left)}` : "now"; }
    for (const element of document.querySelectorAll("[data-since]")) element.textContent = format.duration(Math.max(0, Date.now() - Number(element.dataset.since)));
  }, 1000);
  if (connection) open();  // also on a page without streams: it shows the broker's state
  return { format, at, known, sections, write };
})();
